"""What the scrubs of a device have shown, the one that runs, and what the next one owes: one part of the record.

* ``due_path``: a path stays due from the start of a scrub on it until a scrub passes that is as thorough. The start of
  a burn-in, or of the first look at a device that was proven before, does not change it: such a test may end for a
  request. An ailment makes the path due that ``ailments.path_after`` names, and a grave error from before the first
  observation the path ``reset``. A reboot of the node counts as the reset of the path ``reset``.
* ``setback``: how often a scrub has failed. It sets the next pause.
* ``stuck``: who did not end, and since when (``core.stuck``). Only an evict that has passed says that nobody is stuck.
* ``undecided``, ``node_or_device``: failures whose blame is open. They count whatever has ended their job.

A proof ends all of these but the path that is due. So do a person's word, and another boot or driver instance, which no
process outlives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scrubber.core import ailments, stuck, tenancy
from scrubber.core import events as ev
from scrubber.core.measurements import ZEROS
from scrubber.core.model import (
    Blame,
    Findings,
    Incarnation,
    Job,
    Moment,
    Receipt,
    ScrubPath,
    Setback,
    Step,
    Stuck,
    Trigger,
    most_thorough,
)
from scrubber.core.tenancy import Tenancy

REMEMBERED = 5  # durations of fast scrubs that show how long one usually takes


@dataclass(frozen=True, slots=True)
class Scrubs:
    """What the scrubs of the device have shown, the one that runs, and what the next one owes."""

    job: Job | None = None
    receipt: Receipt | None = None  # None once something has ended the proof
    last_receipt: str | None = None  # digest of the newest receipt ever given
    proven_at: float = 0.0  # uptime of this boot; when the last scrub that passed had finished
    setback: Setback | None = None
    stuck: Stuck | None = None  # told to end by a scrub, and still on the device
    undecided: bool = False  # since the last proof, a program of ours has failed on the device
    node_or_device: Moment | None = None  # the first failure since the last proof that the node may have caused
    due_path: ScrubPath | None = None  # the next scrub takes at least this path
    half_cleared: bool = False  # a clear began and no proof followed: what is in memory may be our own pattern
    pattern_left: bool = False  # the last proof left a pattern: what no user has overwritten may still be that
    soiled: int = 0  # how often its proof was ended by a use, or by memory of nobody, since it was last handed out
    fast_seconds: tuple[float, ...] = ()  # seconds of its last fast scrubs that passed
    tested: float | None = None  # wall; when a scrub with a self-test last passed, or the first receipt was given
    burn_in_begun: float | None = None  # wall; when the last burn-in began

    @property
    def usual_seconds(self) -> float | None:
        """How long the device's fast path usually takes; None until one was measured."""
        times = sorted(self.fast_seconds)
        return times[len(times) // 2] if times else None


def guard(scrubs: Scrubs, event: ev.Event, device: str, incarnation: Incarnation) -> None:
    """Reject an event of another job, or a receipt that does not prove what it must."""
    match event:
        case ev.StepsRecorded() | ev.Escalated() | ev.ScrubFailed() | ev.ScrubInterrupted():
            _demand_job(scrubs, event.job)
        case ev.ScrubPassed(job, receipt):
            _demand_job(scrubs, job)
            ev.demand(receipt.device == device, "the receipt is for another device")
            ev.demand(receipt.incarnation == incarnation, "the receipt is of another boot or driver")
            ev.demand(receipt.previous == scrubs.last_receipt, "the receipt does not follow the one before")
            was_reset = any(step is Step.RESET for step, _ in receipt.steps)
            met = was_reset or scrubs.due_path is not ScrubPath.RESET
            ev.demand(met, "the device needs a reset, and the receipt names none")
        case ev.Granted(grant):
            receipt_is_its = scrubs.receipt is not None and grant.receipt == scrubs.receipt.id
            ev.demand(receipt_is_its, "the grant has another receipt")
        case _:
            pass


def _demand_job(scrubs: Scrubs, job: str) -> None:
    ev.demand(scrubs.job is not None and job == scrubs.job.id, "the event is about another job")


def fold(
    scrubs: Scrubs, event: ev.Event, at: Moment, *, had: Tenancy, quarantined: bool, before: Incarnation
) -> Scrubs:  # fmt: skip
    """What an event changes. ``had``: who has the device before it. ``before``: the boot and driver of the record."""
    match event:
        case ev.ScrubStarted(job) | ev.ProbationStarted(job):
            return _started(scrubs, job)
        case ev.StepsRecorded(results=results, begins=begins):
            job, here = _job(scrubs), scrubs.stuck
            for evict in (result for result in results if result.step is Step.EVICT):
                here = stuck.followed(here, stuck.left_by(evict), at)
            return replace(scrubs, job=replace(job, begun=begins, results=(*job.results, *results)), stuck=here)
        case ev.Escalated(path=path):
            job = replace(_job(scrubs), path=path)
            return replace(scrubs, job=job, due_path=path, half_cleared=_half_cleared(scrubs))
        case ev.ScrubPassed(receipt=receipt):
            return _passed(scrubs, receipt, at)
        case ev.ScrubFailed(why=why):
            job, count = _job(scrubs), _failures(scrubs) + 1
            burn_in = job.trigger is Trigger.BURN_IN
            due = scrubs.due_path if burn_in else most_thorough(scrubs.due_path, job.path)
            return replace(_without_job(scrubs, at), setback=Setback(why, at, count), due_path=due)
        case ev.ScrubInterrupted():
            return _without_job(scrubs, at)
        case ev.Granted():
            its = scrubs.receipt
            if its is not None and tenancy.ends(had, event):
                its = replace(its, envelope="")  # it names the hand-over that has ended
            return replace(scrubs, receipt=its, half_cleared=False, soiled=0)
        case ev.GrantedUnproven() | ev.PutInUse():
            return replace(scrubs, receipt=None, half_cleared=False, soiled=0)
        case ev.Released() if not had.kept_for:
            return replace(scrubs, receipt=None)
        case ev.Soiled(times=times):
            return replace(scrubs, receipt=None, soiled=times)
        case ev.AilmentFound(ailment):
            return replace(scrubs, due_path=most_thorough(scrubs.due_path, ailments.path_after(ailment)))
        case ev.Quarantined(quarantine):
            due = most_thorough(scrubs.due_path, ailments.path_after(quarantine.ailment))
            return replace(_without_job(scrubs, at), receipt=None, due_path=due)
        case ev.QuarantineWithdrawn() if scrubs.due_path is ScrubPath.FAST:
            return replace(scrubs, due_path=None)  # the ailment has made it due
        case ev.Reinstated():
            return replace(_forgiven(scrubs), due_path=None)
        case ev.ErrorsNoted(grave=True):
            return replace(scrubs, due_path=ScrubPath.RESET)
        case ev.Distrusted(incarnation=now):
            return _distrusted(scrubs, before, now, quarantined=quarantined)
        case _:
            return scrubs


def failure(scrubs: Scrubs, why: str, blame: Blame, findings: Findings) -> ev.ScrubFailed:
    """How the job that runs is recorded if it ends without a proof: with whoever was in its way, and is not ended."""
    holders = tuple(holder for holder in findings.holders if holder.pid not in findings.terminated)
    return ev.ScrubFailed(_job(scrubs).id, why, blame, holders, findings.unnamed, _failures(scrubs) + 1)


def _failures(scrubs: Scrubs) -> int:
    """How many scrubs have failed since the last proof."""
    return scrubs.setback.count if scrubs.setback is not None else 0


def _without_job(scrubs: Scrubs, at: Moment) -> Scrubs:
    """What a job leaves behind that ends without a proof, whatever ends it."""
    blamed = {result.blame for result in scrubs.job.results} if scrubs.job is not None else set()
    return replace(
        scrubs,
        job=None,
        half_cleared=_half_cleared(scrubs),
        undecided=scrubs.undecided or Blame.UNDECIDED in blamed,
        node_or_device=scrubs.node_or_device or (at if Blame.NODE_OR_DEVICE in blamed else None),
    )


def _forgiven(scrubs: Scrubs) -> Scrubs:
    """Without a memory of what has failed."""
    return replace(scrubs, setback=None, stuck=None, undecided=False, node_or_device=None)


def _job(scrubs: Scrubs) -> Job:
    if scrubs.job is None:
        raise ev.IllegalEventError("cannot happen: the device has no job")
    return scrubs.job


def _started(scrubs: Scrubs, job: Job) -> Scrubs:
    """With this job. Unless the job may end for a request, its path stays due until a scrub passes."""
    known = job.trigger is Trigger.FIRST_LOOK and scrubs.tested is not None and job.path is not ScrubPath.RESET
    may_end = job.trigger is Trigger.BURN_IN or known
    due = scrubs.due_path if may_end else most_thorough(scrubs.due_path, job.path)
    begun = job.started.wall if job.trigger is Trigger.BURN_IN else scrubs.burn_in_begun
    return replace(scrubs, job=job, receipt=None, due_path=due, burn_in_begun=begun)


def _half_cleared(scrubs: Scrubs) -> bool:
    """Whether a clear has begun since the last tenancy, at a moment at which nothing proves its end."""
    job = scrubs.job
    begun = () if job is None else (job.begun, *(result.step for result in job.results))
    return scrubs.half_cleared or Step.CLEAR in begun


def _passed(scrubs: Scrubs, receipt: Receipt, at: Moment) -> Scrubs:
    """Clean: the receipt is valid from now on."""
    fast, took = receipt.path is ScrubPath.FAST, scrubs.fast_seconds
    if fast:
        took = (*took[1 - REMEMBERED :], at.uptime - _job(scrubs).started.uptime)
    met = most_thorough(scrubs.due_path, receipt.path) is receipt.path
    return replace(
        _forgiven(scrubs),
        job=None,
        receipt=receipt,
        last_receipt=receipt.digest,
        proven_at=receipt.finished.uptime,
        half_cleared=False,
        pattern_left=receipt.leaves != ZEROS,
        due_path=None if met else scrubs.due_path,
        fast_seconds=took,
        tested=at.wall if not fast or scrubs.tested is None else scrubs.tested,
    )


def _distrusted(scrubs: Scrubs, before: Incarnation, now: Incarnation, *, quarantined: bool) -> Scrubs:
    due, rebooted = scrubs.due_path, now.boot_id != before.boot_id
    if rebooted and due is ScrubPath.RESET:
        due = ScrubPath.SLOW  # the reboot has reset the device
    return replace(
        scrubs if now == before else _forgiven(scrubs),  # all processes have ended, and times may be of another boot
        receipt=None,
        proven_at=0.0 if rebooted else scrubs.proven_at,
        due_path=most_thorough(ScrubPath.SLOW, due) if quarantined else due,  # as after a first observation
    )
