"""The possible answers of each decision: closed unions, matched without a default so that no answer is forgotten.

Tenants read the sentences of ``Wait`` and ``Refuse``: they name the requested device and nothing else. The functions
below write them. Each has a remedy: who can help, and how.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ground.errors import Reason
from scrubber.core import events as ev
from scrubber.core.model import NO_HOLDER, Blame, Facts, InTheWay, ScrubPath, Trigger
from scrubber.core.record import Record

TRY_AGAIN = "try again in a moment"
BRINGS_BACK = "says why, and what brings it back"


@dataclass(frozen=True, slots=True)
class HandOut:
    """The device may be handed out. ``unproven``, under policy ``observe`` only: why it is not proven clean."""

    unproven: str | None = None


@dataclass(frozen=True, slots=True)
class Admit:
    """A container may start. Record this first, for all of its devices in one transaction."""

    event: ev.PutInUse
    handed_out: HandOut | None = None  # its grant comes before it: no Allocate was recorded


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
    """A test is running that no request needs: cancel it, then try again."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now. The cause may end within moments."""

    reason: Reason
    message: str
    remedies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """No, and waiting does not help."""

    reason: Reason
    message: str
    remedies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordFirst:
    """Record this event, observe again, try again."""

    event: ev.Event


@dataclass(frozen=True, slots=True)
class Veto:
    """The job must not run its next step. Operators read why."""

    blame: Blame
    why: str
    in_the_way: InTheWay = NO_HOLDER


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


AcquireAnswer = Proceed | HandOut | Scrub | Join | CancelJob | Wait | Refuse | RecordFirst
StartAnswer = Proceed | Admit | Scrub | Join | CancelJob | Wait | Refuse | RecordFirst
ReleaseAnswer = Proceed | Refuse | RecordFirst
TendAnswer = RecordFirst | Scrub | StartProbation | Blocked | Proceed


class Action(Enum):
    """What cannot be done with the device."""

    HAND_OUT = "hand out"
    START_ON = "start on"
    TAKE_BACK = "take back"
    DISTRUST = "end the proof of"


def sentence(action: Action, record: Record, why: str) -> str:
    """What cannot be done, with which device, and why."""
    return f"cannot {action.value} {record.device.uuid}: {why}"


def why_unknown(facts: Facts) -> str:
    """Why nothing can be done with a device whose holders could not be determined."""
    return facts.shortage or "it cannot be proven that no process uses it"


def why_unknown_for_operators(facts: Facts) -> str:
    """The same, with the process that is in the way. Tenants must not read its name."""
    return f"{why_unknown(facts)}: {facts.held_up}" if facts.held_up else why_unknown(facts)


def explain(record: Record, says: str) -> tuple[str]:
    """Where an operator finds more. A tenant cannot run this command, and learns whom to ask."""
    return (f"on its node, `autoclave explain {record.device.name}` {says}",)


def holders_unknown(action: Action, record: Record, facts: Facts) -> Wait:
    """Its holders could not be determined."""
    reason = Reason.SHORTAGE if facts.shortage else Reason.NOT_PROVEN_FREE
    return Wait(reason, sentence(action, record, why_unknown(facts)), explain(record, "says what is in the way"))


def busy(action: Action, record: Record) -> Wait:
    """It has a holder that must not be disturbed, or an owner that is about to start."""
    return Wait(Reason.IN_USE, sentence(action, record, "it is still in use"), explain(record, "says who uses it"))


def in_reset(action: Action, record: Record) -> Wait:
    """A reset of a sibling also takes this device down."""
    return Wait(Reason.NOT_READY, sentence(action, record, "it is being reset"), (TRY_AGAIN,))


def sick(action: Action, record: Record) -> Refuse:
    """It has an ailment."""
    return Refuse(Reason.SICK, sentence(action, record, "it is unhealthy"), explain(record, BRINGS_BACK))


def quarantined(action: Action, record: Record) -> Refuse:
    """A probation or a person must bring it back first."""
    return Refuse(Reason.QUARANTINED, sentence(action, record, "it is quarantined"), explain(record, BRINGS_BACK))


def final(answer: Wait) -> Refuse:
    """This answer as a refusal, for a caller that does not wait."""
    return Refuse(answer.reason, answer.message, answer.remedies)
