"""No process may remain on the device.

What belongs to a live container is never touched. What may be ended is ended through pidfds, and only what a second
look, taken while the pidfd already pins the process, still shows as the same process on the device and in no container.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from scrubber.core import leftover
from scrubber.core.model import Blame, Findings, Holder, Outcome
from scrubber.ground import process_names
from scrubber.node.proc import DEAD
from scrubber.steps.base import Bench, Order, Report

_KILLED_WITHIN = 2.0  # what SIGKILL has not ended by then is stuck in the kernel
_LOOK_AGAIN = 0.2  # a process may also let go of the device without ending

_Key = tuple[int, float]


def run(order: Order, bench: Bench) -> Report:
    """End what may be ended, wait for the rest, and pass only on a look that shows nobody."""
    patience_ends = time.monotonic() + order.patience
    found: dict[_Key, Holder] = {}
    ended: list[int] = []
    tried: set[_Key] = set()
    outlived: set[_Key] = set()
    while (holders := _look(bench)) is not None:
        found |= {_key(holder): holder for holder in holders}
        findings = Findings(holders=tuple(found.values()), terminated=tuple(ended))
        if not holders:
            return Report(Outcome.PASSED, findings=findings)
        tenants = tuple(it for it in holders if it.container is not None and not bench.ours(it.pid))
        if tenants:
            return _refuse(f"a live container is on the device: {_names(tenants)}", findings)
        # A worker on another device may open all of them for a moment: it is waited for, never ended.
        condemned = {_key(it) for it in holders if _may_end(it, order) and not bench.ours(it.pid)} - tried
        if condemned:
            gone, alive = _terminate(condemned, bench, order.grace)
            ended += gone
            outlived |= alive
            tried |= condemned
        elif time.monotonic() >= patience_ends:
            stuck = tuple(it for it in holders if _key(it) in outlived)
            return _refuse(f"still on the device: {_names(holders)}", replace(findings, stuck=stuck))
        else:
            _wait(holders, min(_LOOK_AGAIN, patience_ends - time.monotonic()))
    return _refuse(
        "cannot prove who uses the device: run the service in the host pid namespace and as root",
        Findings(holders=tuple(found.values()), terminated=tuple(ended)),
    )


def _look(bench: Bench) -> tuple[Holder, ...] | None:
    holders = bench.holders()
    # What died while it was looked at holds nothing any more.
    return None if holders is None else tuple(holder for holder in holders if holder.state not in DEAD)


def _refuse(detail: str, findings: Findings) -> Report:
    return Report(Outcome.FAILED, detail, Blame.TENANT, findings)


def _key(holder: Holder) -> _Key:
    return holder.pid, holder.started


def _may_end(holder: Holder, order: Order) -> bool:
    leftovers, foreign = order.terminate_leftovers, order.terminate_foreign
    return leftover.may_end(holder, order.tenancy, leftovers=leftovers, foreign=foreign)


def _names(holders: tuple[Holder, ...]) -> str:
    return ", ".join(_name(holder) for holder in holders)


def _name(holder: Holder) -> str:
    where = "no container" if holder.container is None else f"container {holder.container}"
    stuck = "stuck in the kernel (state D): only its driver or a reboot ends it" if holder.state == "D" else ""
    return f"pid {holder.pid} ({process_names.quoted(holder.command)} in {where}, {stuck or f'state {holder.state}'})"


def _terminate(condemned: Collection[_Key], bench: Bench, grace: float) -> tuple[list[int], set[_Key]]:
    """TERM, the grace, KILL: the pids of those that are gone then, and who is still there."""
    with _pinned(condemned) as pinned:
        # The pidfd pins whoever has the number now. Only a look taken after that says whether it is the one we mean.
        again = {_key(holder): holder for holder in _look(bench) or ()}
        doomed = {
            handle: key
            for handle, key in pinned.items()
            if (holder := again.get(key)) is not None and holder.container is None
        }
        alive = _signal(doomed, signal.SIGTERM, grace)
        alive = _signal(alive, signal.SIGKILL, _KILLED_WITHIN)
        return [pid for handle, (pid, _) in doomed.items() if handle not in alive], set(alive.values())


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


def _signal(doomed: Mapping[int, _Key], number: signal.Signals, seconds: float) -> dict[int, _Key]:
    """Send a signal to each, then wait: those that have not ended by the end of it."""
    for handle in doomed:
        try:
            signal.pidfd_send_signal(handle, number)
        except (ProcessLookupError, PermissionError):
            continue  # gone, or not ours to end: the wait below tells which
    ends = time.monotonic() + seconds
    alive = dict(doomed)
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
