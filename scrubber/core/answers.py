"""What a decision may come out as: small closed unions, matched without a default so that none is forgotten.

Sentences in ``Wait`` and ``Refuse`` go to tenants: they name the device asked for and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from scrubber.core import events as ev
from scrubber.core.model import Blame, Path, Trigger
from scrubber.ground.errors import Reason


@dataclass(frozen=True, slots=True)
class HandOut:
    """Yes. ``unproven`` says why nothing was proven, under policy ``observe`` only."""

    unproven: str | None = None


@dataclass(frozen=True, slots=True)
class Defer:
    """Yes, without a grant: the wait is left to the start, as policy gate ``prestart`` says in writing."""

    scrub: Scrub | None = None  # to be begun meanwhile


@dataclass(frozen=True, slots=True)
class Admit:
    """Yes, a container may start; this is recorded first, for all devices that it starts on at once."""

    event: ev.PutInUse


@dataclass(frozen=True, slots=True)
class Scrub:
    """Start a job."""

    path: Path
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class Join:
    """A job is under way: wait for it."""


@dataclass(frozen=True, slots=True)
class CancelJob:
    """A job is under way that nobody needs now: end it, then ask again."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now; this may pass by itself within moments."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """No."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Note:
    """Record this first, then ask again."""

    event: ev.Event


@dataclass(frozen=True, slots=True)
class Fenced:
    """A job must not go on. The reason is for operators."""

    blame: Blame
    why: str


@dataclass(frozen=True, slots=True)
class Proceed:
    """Nothing is in the way, and nothing needs to be recorded."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """It should be scrubbed and cannot be, and this is why. For operators: may name processes."""

    why: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Try a quarantined device again."""

    path: Path


@dataclass(frozen=True, slots=True)
class Offer:
    """What ListAndWatch says of a device, and why."""

    healthy: bool
    why: str


AcquireAnswer = HandOut | Defer | Scrub | Join | CancelJob | Wait | Refuse | Note
StartAnswer = Proceed | Admit | HandOut | Scrub | Join | CancelJob | Refuse | Note
ReleaseAnswer = Proceed | Refuse | Note
TendAnswer = Note | Scrub | Probe | CancelJob | Blocked | Proceed
