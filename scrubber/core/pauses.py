"""How long to wait: for a scrub, for the next probation, for a process that does not end, and for the next burn-in."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from policies.hardware import Probation
from policies.model import Mode, Policy
from scrubber.core import presence, proof
from scrubber.core.model import Blame, Moment, Quarantine, Record, ScrubPath, Setback, State, Trigger

RETRY_FIRST = 1.0  # seconds until a failed scrub is tried again ...
RETRY_LONGEST = 60.0  # ... doubling up to this: a process may stay for days, and each try reads all of /proc
INTERRUPTED_FIRST = 60.0  # seconds until a probation that a crash or a reboot interrupted is tried again ...
INTERRUPTED_LONGEST = 3600.0  # ... doubling up to this: the probation itself may be what brings the node down
SPREAD = 0.25  # the pause of a device is longer than the policy's by up to this share; its UUID says by how much


def growing(first: float, longest: float, times: int) -> float:
    """The pause ``first``, doubled ``times`` times up to ``longest``."""
    pause = first
    for _ in range(times):  # step by step: a power overflows after some weeks of tries
        pause = min(pause * 2, longest)
    return pause


def until_probation(rules: Probation, probations: int, chance: float) -> float:
    """How long a quarantined device rests. ``chance`` in [0, 1) spreads the probations of several devices."""
    return growing(rules.first, rules.longest, probations) * (0.8 + 0.2 * chance)


def after_interruption(quarantine: Quarantine) -> float:
    """How long a device rests after its probation was interrupted."""
    return growing(INTERRUPTED_FIRST, INTERRUPTED_LONGEST, quarantine.probes)


def usual_seconds(record: Record) -> float | None:
    """How long the device's fast path usually takes; None until one was measured."""
    times = sorted(record.fast_seconds)
    return times[len(times) // 2] if times else None


def fits_allocate_budget(record: Record, policy: Policy) -> bool:
    """Whether the device's fast path usually ends within the budget of Allocate. True until one was measured."""
    return (usual_seconds(record) or 0.0) <= policy.budgets.allocate


def setback(record: Record, why: str, at: Moment) -> Setback:
    """What the failed job of this record leaves behind, with the processes that no scrub could end."""
    before = record.setback
    count = before.count + 1 if before is not None else 1
    results = record.job.results if record.job is not None else ()
    undecided = any(result.blame is Blame.UNDECIDED for result in results) or (before is not None and before.undecided)
    stuck = tuple(it for result in results for it in result.findings.stuck)
    node = any(result.blame is Blame.NODE_OR_DEVICE for result in results)
    if not stuck:
        return Setback(why, at, count, undecided=undecided, node_or_device=node)
    known = {(it.pid, it.started) for it in before.stuck} if before is not None else set()
    same = any((it.pid, it.started) in known for it in stuck)
    return Setback(why, at, count, stuck, before.stuck_since if before is not None and same else at, undecided, node)


def until_retry(failed: Setback) -> float:
    """How long after its failure a scrub is tried again."""
    return growing(RETRY_FIRST, RETRY_LONGEST, failed.count - 1)


def given_up(record: Record, policy: Policy, now: Moment) -> bool:
    """Whether processes that do not end have delayed the scrubs of this device for the policy's ``give_up`` time."""
    since = setback(record, "", now).stuck_since
    return since is not None and now.uptime - since.uptime >= policy.evict.give_up


def burn_in_is_due(record: Record, records: Collection[Record], policy: Policy, now: Moment) -> bool:
    """Whether to test an idle device. Each has a pause of its own length, so that a fleet is not tested all at once."""
    rules = policy.periodic
    if not rules.every or policy.mode is Mode.OBSERVE or record.state is not State.CLEAN:
        return False
    if spare_devices(record, records) < rules.keep_free or proof.next_path(record, policy) is not ScrubPath.FAST:
        return False  # a path that is due, or follows every tenant, tests as much
    # A time in the future is from before the clock was set back: it says nothing.
    known = [wall for wall in (record.tested, record.burn_in_begun) if wall is not None and wall <= now.wall]
    last = max(known, default=record.since.wall)
    own = int(hashlib.sha256(record.device.uuid.encode()).hexdigest()[:4], 16) / 2**16
    return not 0 <= now.wall - last < rules.every * (1 + SPREAD * own)


def spare_devices(record: Record, records: Collection[Record]) -> int:
    """How many other devices of its resource stay clean while this device and its reset domain are tested.

    Negative while another device is tested, or where a sibling is not idle.
    """
    near = {it.device.uuid: it for it in presence.siblings(record, records)}
    tested = any(it.job is not None and it.job.trigger is Trigger.BURN_IN for it in records)
    if tested or any(it.state is not State.CLEAN and not presence.is_gone(it) for it in near.values()):
        return -1
    return sum(
        it.state is State.CLEAN and it.device.resource == record.device.resource
        for it in records
        if it.device.uuid not in {record.device.uuid, *near}
    )


def gives_way(record: Record) -> bool:
    """Whether the device's job is a test that ends when a pod needs the device. One that found a fault goes on."""
    job = record.job
    if job is None or record.quarantine is not None or job.path is ScrubPath.RESET:
        return False
    return job.trigger is Trigger.BURN_IN
