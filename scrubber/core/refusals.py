"""Why a device cannot be handed out now, in one sentence for tenants."""

from __future__ import annotations

from enum import Enum

from scrubber.core import answers
from scrubber.core.model import Facts, Record
from scrubber.ground.errors import Reason


class Action(Enum):
    """What cannot be done with the device."""

    HAND_OUT = "hand out"
    START_ON = "start on"
    TAKE_BACK = "take back"


def sentence(action: Action, record: Record, why: str) -> str:
    """What cannot be done, with which device, and why."""
    return f"cannot {action.value} {record.device.uuid}: {why}"


def why_unknown(facts: Facts) -> str:
    """Why nothing can be done with a device whose holders could not be determined."""
    return facts.shortage or "it cannot be proven that no process uses it"


def why_unknown_for_operators(facts: Facts) -> str:
    """The same, with the process that is in the way. Tenants must not read its name."""
    return f"{why_unknown(facts)}: {facts.held_up}" if facts.held_up else why_unknown(facts)


def holders_unknown(action: Action, record: Record, facts: Facts) -> answers.Wait:
    """Its holders could not be determined."""
    reason = Reason.SHORTAGE if facts.shortage else Reason.NOT_PROVEN_FREE
    return answers.Wait(reason, sentence(action, record, why_unknown(facts)))


def busy(action: Action, record: Record) -> answers.Wait:
    """It has a holder that must not be disturbed, or an owner that is about to start."""
    return answers.Wait(Reason.IN_USE, sentence(action, record, "it is still in use"))


def being_reset(action: Action, record: Record) -> answers.Wait:
    """Its job has begun a reset, which cannot be cancelled."""
    return answers.Wait(Reason.SCRUBBING, sentence(action, record, "it is being reset; try again"))


def final(answer: answers.Wait) -> answers.Refuse:
    """The same no, for a caller that does not wait."""
    return answers.Refuse(answer.reason, answer.message)
