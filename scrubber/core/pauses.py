"""How long to wait: for a scrub, for the next probation, and for a process that does not end."""

from __future__ import annotations

from policies.hardware import Probation
from policies.model import Policy
from scrubber.core.model import Blame, Moment, Quarantine, Record, Setback

RETRY_FIRST = 1.0  # seconds until a failed scrub is tried again ...
RETRY_LONGEST = 60.0  # ... doubling up to this: a process may stay for days, and each try reads all of /proc
INTERRUPTED_FIRST = 60.0  # seconds until a probation that a crash or a reboot interrupted is tried again ...
INTERRUPTED_LONGEST = 3600.0  # ... doubling up to this: the probation itself may be what brings the node down


def growing(first: float, factor: float, longest: float, times: int) -> float:
    """The pause ``first``, grown ``times`` times by ``factor`` up to ``longest``."""
    pause = first
    for _ in range(times):  # step by step: a power overflows after some weeks of tries
        pause = min(pause * factor, longest)
    return pause


def until_probation(rules: Probation, probations: int, chance: float) -> float:
    """How long a quarantined device rests. ``chance`` in [0, 1) spreads the probations of several devices."""
    return growing(rules.first, rules.factor, rules.longest, probations) * (0.8 + 0.2 * chance)


def after_interruption(quarantine: Quarantine) -> float:
    """How long a device rests after its probation was interrupted."""
    return growing(INTERRUPTED_FIRST, 2, INTERRUPTED_LONGEST, quarantine.probes)


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
    if not stuck:
        return Setback(why, at, count, undecided=undecided)
    known = {(it.pid, it.started) for it in before.stuck} if before is not None else set()
    same = any((it.pid, it.started) in known for it in stuck)
    return Setback(why, at, count, stuck, before.stuck_since if before is not None and same else at, undecided)


def until_retry(failed: Setback) -> float:
    """How long after its failure a scrub is tried again."""
    return growing(RETRY_FIRST, 2, RETRY_LONGEST, failed.count - 1)


def given_up(record: Record, policy: Policy, now: Moment) -> bool:
    """Whether processes that do not end have delayed the scrubs of this device for the policy's ``give_up`` time."""
    since = setback(record, "", now).stuck_since
    return since is not None and now.uptime - since.uptime >= policy.evict.give_up
