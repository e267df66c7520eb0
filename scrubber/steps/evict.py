"""The step ``evict``: signals the processes that hold a device, and waits until none does.

A process of a live container is never touched. A process that may be ended is signalled through its pidfd. A second
observation, taken after the pidfd was opened, must show the same process, still a holder and still in no container.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from ground import process_names
from scrubber.core import leftover
from scrubber.core.model import Blame, Evicted, Holder, Outcome
from scrubber.node.proc import DEAD
from scrubber.steps.orders import Order, Report, StepContext

_KILLED_WITHIN = 2.0  # seconds after SIGKILL; a process that runs longer is stuck in the kernel
_OBSERVE_EVERY = 0.2  # seconds; a process may also close the device without ending

_Key = tuple[int, float]


def run(order: Order, context: StepContext) -> Report:
    """End the holders that may be ended, and wait for the others. Passes only when no holder is left."""
    if order.unused:
        return Report(Outcome.PASSED, findings=Evicted((), ()))
    leftovers, foreign = order.terminate_leftovers, order.terminate_foreign
    may_end = partial(leftover.may_end, tenancy=order.tenancy, leftovers=leftovers, foreign=foreign)
    patience_ends = time.monotonic() + order.patience
    seen: dict[_Key, Holder] = {}
    ended: list[int] = []
    tried: set[_Key] = set()
    survivors: set[_Key] = set()
    while (holders := _observe(context)) is not None:
        seen |= {_key(holder): holder for holder in holders}
        evicted = Evicted(tuple(seen.values()), tuple(ended))
        if not holders:
            return Report(Outcome.PASSED, findings=evicted)
        tenants = tuple(holder for holder in holders if holder.container is not None and not context.ours(holder.pid))
        if tenants:
            return _refuse(f"a live container is on the device: {_names(tenants)}", evicted)
        # A worker of another device may open all devices for a moment. This step waits for it, and never ends it.
        targets = {_key(holder) for holder in holders if may_end(holder) and not context.ours(holder.pid)} - tried
        if targets:
            gone, alive = _terminate(targets, context, order.grace)
            ended += gone
            survivors |= alive
            tried |= targets
        elif time.monotonic() >= patience_ends:
            stuck = tuple(holder for holder in holders if _key(holder) in survivors)
            return _refuse(f"still on the device: {_names(holders)}", replace(evicted, stuck=stuck))
        else:
            _wait(holders, min(_OBSERVE_EVERY, patience_ends - time.monotonic()))
    return _refuse(
        "cannot prove who uses the device: a process hides from /proc, or the service does not see all processes; "
        "see `autoclave doctor`",
        Evicted(tuple(seen.values()), tuple(ended)),
    )


def _observe(context: StepContext) -> tuple[Holder, ...] | None:
    holders = context.holders()
    # A process that died meanwhile holds nothing any more.
    return None if holders is None else tuple(holder for holder in holders if holder.state not in DEAD)


def _refuse(detail: str, evicted: Evicted) -> Report:
    return Report(Outcome.FAILED, detail, Blame.TENANT, evicted)


def _key(holder: Holder) -> _Key:
    return holder.pid, holder.started


def _names(holders: tuple[Holder, ...]) -> str:
    return ", ".join(_name(holder) for holder in holders)


def _name(holder: Holder) -> str:
    where = "no container" if holder.container is None else f"container {holder.container}"
    stuck = "stuck in the kernel (state D): only its driver or a reboot ends it" if holder.state == "D" else ""
    return f"pid {holder.pid} ({process_names.quoted(holder.command)} in {where}, {stuck or f'state {holder.state}'})"


def _terminate(targets: Collection[_Key], context: StepContext, grace: float) -> tuple[list[int], set[_Key]]:
    """Send TERM, wait for the grace period, send KILL. Returns the pids that ended, and the processes that did not."""
    with _pinned(targets) as pinned:
        # A pidfd refers to the process that has the pid now. Only an observation after that shows which process it is.
        again = {_key(holder): holder for holder in _observe(context) or ()}
        confirmed = {
            handle: key
            for handle, key in pinned.items()
            if (holder := again.get(key)) is not None and holder.container is None
        }
        alive = _signal(confirmed, signal.SIGTERM, grace)
        alive = _signal(alive, signal.SIGKILL, _KILLED_WITHIN)
        return [pid for handle, (pid, _) in confirmed.items() if handle not in alive], set(alive.values())


@contextmanager
def _pinned(keys: Collection[_Key]) -> Iterator[dict[int, _Key]]:
    with ExitStack() as stack:
        handles: dict[int, _Key] = {}
        for key in keys:
            try:
                handle = os.pidfd_open(key[0])
            except ProcessLookupError:
                continue
            stack.callback(os.close, handle)
            handles[handle] = key
        yield handles


def _signal(processes: Mapping[int, _Key], number: signal.Signals, seconds: float) -> dict[int, _Key]:
    """Send a signal to each process, then wait. Returns the processes that have not ended within that time."""
    for handle in processes:
        try:
            signal.pidfd_send_signal(handle, number)
        except (ProcessLookupError, PermissionError):
            continue  # the process is gone, or may not be signalled: the wait below tells which
    ends = time.monotonic() + seconds
    alive = dict(processes)
    while alive and (gone := _ended(alive, ends - time.monotonic())):
        alive = {handle: key for handle, key in alive.items() if handle not in gone}
    return alive


def _ended(handles: Mapping[int, object], seconds: float) -> frozenset[int]:
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    return frozenset(handle for handle, _ in poll.poll(max(0.0, seconds) * 1000))


def _wait(holders: tuple[Holder, ...], seconds: float) -> None:
    with _pinned([_key(holder) for holder in holders]) as pinned:
        if len(pinned) == len(holders):
            _ended(pinned, seconds)
