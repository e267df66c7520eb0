"""Devices at every point of their life, made by the table itself, and the facts and policies to ask about them with."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from policies.model import Evict, Eviction, Mode, Paths, Policy, Route
from scrubber.core import events as ev
from scrubber.core import states, verdict
from scrubber.core.model import (
    Ailment,
    Baseline,
    Blame,
    DeviceInfo,
    Facts,
    Findings,
    Grant,
    Holder,
    Incarnation,
    Job,
    Moment,
    Outcome,
    Owner,
    Path,
    Quarantine,
    Record,
    Sickness,
    Step,
    StepResult,
    Trigger,
    Vitals,
    Xid,
)

NOW = Moment(wall=1_750_000_000.0, uptime=10_000.0)
HERE = Incarnation("boot-1", "driver-1")
REBOOTED = Incarnation("boot-2", "driver-1")
RELOADED = Incarnation("boot-1", "driver-2")
DEVICE = DeviceInfo("GPU-1", 0, "NVIDIA H100 80GB HBM3", 1000)

ENFORCE = Policy()
OBSERVE = Policy(mode=Mode.OBSERVE, evict=Evict(leftovers=Eviction.WAIT))
STRICT = Policy(paths=Paths(new_tenant=Route.SLOW), evict=Evict(leftovers=Eviction.WAIT, foreign=Eviction.WAIT))
RUTHLESS = Policy(evict=Evict(leftovers=Eviction.TERMINATE, foreign=Eviction.TERMINATE))
POLICIES = (ENFORCE, OBSERVE, STRICT, RUTHLESS)

A, B = "pod-a", "pod-b"
OF_A = Holder(41, NOW.uptime + 5, "train-a", A)
OF_B = Holder(42, NOW.uptime + 5, "train-b", B)
LEFTOVER = Holder(43, NOW.uptime + 6, "orphan", None)  # began during the tenancy, its container is gone
FOREIGN = Holder(44, NOW.uptime - 500, "nv-hostengine", None)  # was there before the tenant
WELL = Vitals()
XID_79 = Vitals(xids=(Xid(1, 79),))
LOST = Sickness(Ailment.LOST, "the device has fallen off its bus")
PULLED = Sickness(Ailment.OPERATOR, "suspect", sticky=True)


def later(seconds: float) -> Moment:
    """So long after NOW."""
    return Moment(NOW.wall + seconds, NOW.uptime + seconds)


def job(path: Path = Path.FAST, trigger: Trigger = Trigger.RELEASE, name: str = "job-1") -> Job:
    """A job that has just begun."""
    return Job(name, path, trigger, NOW)


def result(step: Step, path: Path = Path.FAST, outcome: Outcome = Outcome.PASSED, **findings: object) -> StepResult:
    """A step's end, with measurements where the step has any."""
    measured: dict[Step, dict[str, object]] = {
        Step.CLEAR: {"covered_bytes": 1000, "allocatable_bytes": 1000, "residue_bytes": 0},
        Step.VERIFY: {"covered_bytes": 1000, "allocatable_bytes": 1000},
        Step.HEALTH: {"vitals": WELL},
    }
    found = Findings(**{**measured.get(step, {}), **findings})  # type: ignore[arg-type] # names and types by hand
    return StepResult(step, path, outcome, 0.25, findings=found)


def results(path: Path = Path.FAST, **findings: dict[str, object]) -> tuple[StepResult, ...]:
    """A path on which every step passed; findings by the name of the step."""
    return tuple(result(step, path, **findings.get(step.value, {})) for step in verdict.PLANS[path])


def finished(path: Path = Path.FAST, name: str = "job-1", **findings: dict[str, object]) -> Job:
    """A job all of whose steps passed."""
    return replace(job(path, name=name), results=results(path, **findings))


def passed(record: Record, at: Moment = NOW, policy: Policy = ENFORCE) -> ev.ScrubPassed:
    """The end of a job that went well, with the receipt that the verdict writes."""
    assert record.job is not None
    done = replace(record.job, results=results(record.job.path))
    judged = verdict.judge(done, record.baseline, policy)
    assert isinstance(judged, verdict.Passed)
    receipt = verdict.write_receipt(record, done, judged, ("defaults", policy.proof_digest), at)
    return ev.ScrubPassed(done.id, receipt)


def grant(record: Record, *, announced: bool = True, epoch: str = "epoch-1", proven: bool = True) -> Grant:
    """A yes on the strength of what the record holds."""
    receipt = record.receipt.id if record.receipt and proven else None
    return Grant("grant-1", NOW, epoch, announced, receipt)


def quarantine(sickness: Sickness = LOST, next_probe: float | None = NOW.uptime + 60) -> Quarantine:
    """A quarantine that began now."""
    return Quarantine(sickness, NOW, "autoclave", Baseline(), 0, next_probe)


def live(record: Record | None, *events: ev.Event, at: Moment = NOW) -> Record:
    """The record after these events."""
    for event in events:
        record = states.apply(record, ev.Entry(0, DEVICE.uuid, at, "op", event))
    assert record is not None
    return record


UNKNOWN = live(None, ev.Discovered(DEVICE, HERE))
FIRST_LOOK = live(UNKNOWN, ev.ScrubStarted(job(Path.SLOW, Trigger.FIRST_LOOK)))
CLEAN = live(FIRST_LOOK, passed(FIRST_LOOK))
GRANTED = live(CLEAN, ev.Granted(grant(CLEAN)))
UNANNOUNCED = live(CLEAN, ev.Granted(grant(CLEAN, announced=False)))
UNPROVEN = live(UNKNOWN, ev.GrantedUnproven(grant(UNKNOWN), "observe"))
EXPOSED = live(GRANTED, ev.Exposed(Owner(A, NOW, seen=True)))
NAMELESS = live(GRANTED, ev.Exposed(Owner(None, NOW)))
DIRTY = live(EXPOSED, ev.Released("its pod is gone"))
SOILED = live(CLEAN, ev.Soiled("it was used without a grant", (FOREIGN,)))
SCRUBBING = live(DIRTY, ev.ScrubStarted(job()))
SET_BACK = live(SCRUBBING, ev.ScrubFailed("job-1", "a process is on it"))
QUARANTINED = live(CLEAN, ev.Quarantined(quarantine()))
STICKY = live(CLEAN, ev.Quarantined(quarantine(PULLED, None)))
PROBED = live(QUARANTINED, ev.ProbationStarted(job(Path.SLOW, Trigger.PROBATION), "autoclave"))
REINSTATED = live(STICKY, ev.ProbationStarted(job(Path.SLOW, Trigger.REINSTATE), "ann"))
SICK_IN_USE = live(EXPOSED, ev.Sickened(LOST))
SICK_GRANTED = live(GRANTED, ev.Sickened(LOST))
SICK_DIRTY = live(SICK_IN_USE, ev.Released("its pod is gone"))
LIVES = {
    name: value for name, value in list(globals().items()) if isinstance(value, Record)
}  # every one of them by its name
IDLE, BUSY = (), (OF_A,)


def facts(
    holders: tuple[Holder, ...] | None = (),
    *,
    alive: bool | None = None,
    incarnation: Incarnation = HERE,
    epoch: str = "epoch-1",
    since: float = 0.0,
    siblings: bool | None = False,
    vitals: Vitals | None = WELL,
) -> Facts:
    """What is seen of a device that is well and that nobody uses, but for what is said."""
    return Facts(incarnation, epoch, holders, since, alive, siblings, vitals)


def example(kind: type[ev.Event], record: Record, at: Moment = NOW) -> ev.Event:  # noqa: PLR0911, C901 - one arm an event
    """An event of this kind that could be about this record."""
    name = record.job.id if record.job else "job-1"
    fitting: dict[type[ev.Event], object] = {
        ev.Discovered: lambda: ev.Discovered(DEVICE, HERE),
        ev.Described: lambda: ev.Described(replace(DEVICE, index=3)),
        ev.Distrusted: lambda: ev.Distrusted("the node was rebooted", REBOOTED),
    }
    raise NotImplementedError((kind, name, at, fitting))
