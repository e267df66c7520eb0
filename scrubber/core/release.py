"""May a device be taken back? The caller's word that the last tenant has ended is not enough."""

from __future__ import annotations

from scrubber.core import answers, ownership, refusals
from scrubber.core import events as ev
from scrubber.core.model import Facts, Moment, Record, State
from scrubber.core.refusals import Action
from scrubber.ground.errors import Reason


def decide(record: Record, facts: Facts, now: Moment, owner: str = "") -> answers.ReleaseAnswer:
    """Record the release, or refuse it. Proceed where the device is not granted.

    ``owner``: refuse a device that was granted to another owner. A device that was found in use, as after the loss of
    the ledger, has no grant: no other owner is known, and the observation decides alone.
    """
    if record.state not in (State.GRANTED, State.IN_USE):
        return answers.Proceed()
    if owner and record.grant is not None and not ownership.acquired_for(record, owner):
        why = "it was not acquired for this owner; `autoclave status` names its owner"
        return answers.Refuse(Reason.OTHER_OWNER, refusals.sentence(Action.TAKE_BACK, record, why))
    used = still_in_use(Action.TAKE_BACK, record, facts, now)
    by = f" by {owner}" if owner else ""
    return refusals.final(used) if used is not None else answers.RecordFirst(ev.Released(f"it was given back{by}"))


def still_in_use(action: Action, record: Record, facts: Facts, now: Moment) -> answers.Wait | None:
    """Why a granted device is not free: it is in use or about to be used, or its use is not known. None: it is free."""
    if ownership.unannounced_pod_has_left(record, facts):
        return None
    named = record.owner is not None and record.owner.container is not None
    if facts.holders is None or (named and facts.owner_alive is None):
        return refusals.holders_unknown(action, record, facts)
    if facts.owner_alive is True or ownership.live_container(facts.holders) is not None:
        return refusals.busy(action, record)
    if named and ownership.about_to_start(record.owner, now):
        return refusals.busy(action, record)
    return None
