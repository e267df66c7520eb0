"""What a record keeps of the fence, so that a receipt can close the tenancy: one rule for all events. Pure."""

from __future__ import annotations

from dataclasses import replace

from scrubber.core import events as ev
from scrubber.core import fencing
from scrubber.core.fencing import OpenTo
from scrubber.core.guarded import EndedTenancy, FenceMemory, Guarded, between
from scrubber.core.model import Moment, State
from scrubber.core.record import Record
from scrubber.core.use_counter import FenceReading


def remembered(before: Record, after: Record, event: ev.Event, at: Moment) -> Record:
    """The record after an event, with what it keeps of the fence."""
    memory = before.fence
    if before.state is State.CLEAN and not isinstance(event, ev.TenancyClosed):
        memory = replace(memory, ended=None)  # wiped by a version that closed no tenancies
    if after.tenancy.number != before.tenancy.number:
        # The next container did not come: what was to go on has ended with the pause.
        ended = memory.ended if before.tenancy.is_paused else _ended(before, event, at)
        memory = FenceMemory(proof=memory.proof, ended=ended)
    elif isinstance(event, ev.Released) and event.restart:
        memory = replace(memory, ended=_ended(before, event, at))
    match event:
        case ev.Granted(grant) | ev.GrantedUnproven(grant) if _begins(before, after):
            memory = replace(memory, grant=event.fence, granted=at, receipt=grant.receipt or "", opened=None)
        case ev.ScrubPassed():
            memory = replace(memory, proof=event.fence)
        case ev.TenancyClosed():
            memory = replace(memory, ended=None)
        case _:
            pass
    is_open = fencing.open_to(after) is OpenTo.ALL
    if is_open and memory.opened is None:
        memory = replace(memory, opened=at)
    elif not is_open and memory.opened == at:  # rows of one write: the kernel was told of the last one only
        memory = replace(memory, opened=None)
    return after if memory == after.fence else replace(after, fence=memory)


def _begins(before: Record, after: Record) -> bool:
    """Whether a tenancy begins with this grant. A restart, or another container of the pod, does not begin one."""
    tenancy, again = before.tenancy, after.tenancy.grant
    same = tenancy.grant is not None and again is not None and tenancy.grant.receipt == again.receipt
    goes_on = same or tenancy.span is not None or tenancy.awaits != ""
    return not goes_on or after.tenancy.number != tenancy.number


def _ended(before: Record, event: ev.Event, at: Moment) -> EndedTenancy:
    memory, tenancy = before.fence, before.tenancy
    reading: FenceReading | None = getattr(event, "fence", None)
    owner = tenancy.owner
    return EndedTenancy(
        number=tenancy.number,
        boot_id=before.incarnation.boot_id,
        ended=at,
        began=memory.granted,
        container=(owner.container if owner is not None else None) or tenancy.awaits or None,
        pod=owner.called if owner is not None else "",
        acquired_by=tenancy.acquired_by,
        receipt=memory.receipt,
        guarded=between(memory.grant, reading, open_to_all=memory.opened is not None),
        last=reading,
    )


def since_proof(record: Record, reading: FenceReading | None) -> Guarded:
    """What the fence says about the time from the last proof until this reading."""
    memory, ended = record.fence, record.fence.ended
    opened = memory.opened is not None or (ended is not None and ended.guarded.open_to_all)
    return between(memory.proof, reading, open_to_all=opened)


def until_wiped(ended: EndedTenancy, wiped: FenceReading | None) -> Guarded:
    """What the fence says about the time from the end of a tenancy until the device is proven clean."""
    return between(ended.last, wiped)
