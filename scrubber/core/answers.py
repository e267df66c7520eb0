"""The possible answers of each decision: closed unions, matched without a default so that no answer is forgotten.

Tenants read the sentences of ``Wait`` and ``Refuse``: they name the requested device and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from scrubber.core import events as ev
from scrubber.core.model import Blame, ScrubPath, Trigger
from scrubber.ground.errors import Reason


@dataclass(frozen=True, slots=True)
class HandOut:
    """The device may be handed out. ``unproven``, under policy ``observe`` only: why it is not proven clean."""

    unproven: str | None = None


@dataclass(frozen=True, slots=True)
class Defer:
    """The device may be handed out, and its start waits for the proof: under policy ``gate: create`` only."""

    scrub: Scrub | None = None  # to start meanwhile


@dataclass(frozen=True, slots=True)
class Admit:
    """A container may start. Record this event first, for all of its devices in one transaction."""

    event: ev.PutInUse


@dataclass(frozen=True, slots=True)
class Scrub:
    """Start a scrub."""

    path: ScrubPath
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class Join:
    """A job runs: wait for it."""


@dataclass(frozen=True, slots=True)
class CancelJob:
    """A burn-in runs: cancel it, then try again."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now. The cause may end within moments."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """No, and waiting does not help."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class RecordFirst:
    """Record this event, observe again, try again."""

    event: ev.Event


@dataclass(frozen=True, slots=True)
class Fenced:
    """The job must not run its next step. Operators read why."""

    blame: Blame
    why: str


@dataclass(frozen=True, slots=True)
class Proceed:
    """The request may go on, or there is nothing to do. There is no event to record."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The device needs a scrub and cannot have one now. Operators read why; it may name processes."""

    why: str


@dataclass(frozen=True, slots=True)
class StartProbation:
    """Start the probation of a quarantined device."""

    path: ScrubPath


@dataclass(frozen=True, slots=True)
class Offer:
    """Whether ListAndWatch calls a device Healthy, and why."""

    healthy: bool
    why: str


AcquireAnswer = Proceed | HandOut | Defer | Scrub | Join | CancelJob | Wait | Refuse | RecordFirst
StartAnswer = Proceed | Admit | HandOut | Scrub | Join | CancelJob | Wait | Refuse | RecordFirst
ReleaseAnswer = Proceed | Refuse | RecordFirst
TendAnswer = RecordFirst | Scrub | StartProbation | CancelJob | Blocked | Proceed
