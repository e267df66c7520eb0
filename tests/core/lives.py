"""Devices at every point of their life, made by the table itself, and the facts and policies to ask about them with."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import strategies as st

from policies.policy_model import Evict, Eviction, Mode, Paths, Policy
from scrub_api.measurements import Measurements
from scrubber.core import events as ev
from scrubber.core import plans, states, step_results, verdict
from scrubber.core.answers import RecordFirst
from scrubber.core.guarded import UNKNOWN as UNREAD
from scrubber.core.guarded import EndedTenancy
from scrubber.core.measured import Cleared, Restored, Scratched, Tested, Verified
from scrubber.core.model import (
    Ailment,
    AilmentKind,
    Baseline,
    DeviceInfo,
    Evicted,
    Facts,
    Findings,
    Grant,
    HealthRead,
    Holder,
    Incarnation,
    Job,
    Moment,
    Opener,
    Outcome,
    Owner,
    Quarantine,
    Receipt,
    ScrubPath,
    State,
    Step,
    StepResult,
    Trigger,
    Vitals,
    Xid,
)
from scrubber.core.record import Record

NOW = Moment(wall=1_750_000_000.0, uptime=10_000.0)
HERE = Incarnation("boot-1", "driver-1")
REBOOTED = Incarnation("boot-2", "driver-1")
RELOADED = Incarnation("boot-1", "driver-2")
AWAY = NOW.uptime + 1  # since when we watch, when the service was away after a proof
IN_THE_WAY = ("on its node, `autoclave explain 0` says what is in the way",)
BY_WHOM = ("on its node, `autoclave explain 0` says who uses it",)
BACK = ("on its node, `autoclave explain 0` says why, and what brings it back",)
DEVICE = DeviceInfo("GPU-1", 0, "NVIDIA H100 80GB HBM3", 1000)

ENFORCE = Policy()
OBSERVE = Policy(mode=Mode.OBSERVE, evict=Evict(leftovers=Eviction.WAIT))
STRICT = Policy(paths=Paths(new_tenant=ScrubPath.SLOW), evict=Evict(leftovers=Eviction.WAIT, foreign=Eviction.WAIT))
ENDS_ALL = Policy(evict=Evict(leftovers=Eviction.TERMINATE, foreign=Eviction.TERMINATE))
POLICIES = (ENFORCE, OBSERVE, STRICT, ENDS_ALL)

A, B = "pod-a", "pod-b"
OF_A = Holder(41, NOW.uptime + 5, "train-a", A)
OF_B = Holder(42, NOW.uptime + 5, "train-b", B)
LEFTOVER = Holder(43, NOW.uptime, "orphan", None)  # began during the tenancy, its container is gone
OPENER = Opener(B, "team/b", "train-b", 42, exempt=False, times=3, refused=0, first=NOW.wall, last=NOW.wall + 1)
FOREIGN = Holder(44, NOW.uptime - 500, "nv-hostengine", None)  # was there before the tenant
WELL = Vitals()
ENVELOPE = '{"payload":"e30=","payloadType":"text/json","signatures":[{"keyid":"0123456789abcdef","sig":"AA=="}]}'
XID_79 = Vitals(xids=(Xid(1, 79),))
RELAID = Vitals(lost=True, relaid=True)
LOST = Ailment(AilmentKind.LOST, "the device has fallen off its bus")
PULLED = Ailment(AilmentKind.OPERATOR, "suspect", sticky=True)


def rows(*table: tuple[object, ...]) -> list[ParameterSet]:
    """Parameters from rows that begin with their sentence."""
    return [pytest.param(*row[1:], id=str(row[0])) for row in table]


def later(seconds: float) -> Moment:
    """So long after NOW."""
    return Moment(NOW.wall + seconds, NOW.uptime + seconds)


def job(path: ScrubPath = ScrubPath.FAST, trigger: Trigger = Trigger.RELEASE, name: str = "job-1") -> Job:
    """A job that has just begun."""
    return Job(name, path, trigger, NOW)


GOOD: dict[Step, Findings | None] = {
    Step.EVICT: Evicted((), ()),
    Step.RESET: None,
    Step.CLEAR: Cleared(1000, 0, 1000, patterns=("random", "zero")),
    Step.VERIFY: Verified(1000, ("zero",), 1000),
    Step.SCRATCH: Scratched(132, 132),
    Step.SELFTEST: Tested(("address", "arithmetic"), covered_bytes=1000, units=132),
    Step.SETTINGS: Restored(),
    Step.HEALTH: HealthRead(WELL),
}


def result(
    step: Step, path: ScrubPath = ScrubPath.FAST, outcome: Outcome = Outcome.PASSED, **findings: object
) -> StepResult:
    """A step's end, with what the step found: all is well but for these findings."""
    found = GOOD[step]
    if findings:
        found = replace(found, **findings)  # type: ignore[type-var] # by name
    return StepResult(step, path, outcome, 0.25, findings=found)


def results(path: ScrubPath = ScrubPath.FAST, **findings: dict[str, object]) -> tuple[StepResult, ...]:
    """A path on which every step passed; findings by the name of the step."""
    passed = Outcome.PASSED
    return tuple(result(step, path, passed, **findings.get(step.value, {})) for step in plans.PLANS[path])


def finished(path: ScrubPath = ScrubPath.FAST, name: str = "job-1", **findings: dict[str, object]) -> Job:
    """A job all of whose steps passed."""
    return replace(job(path, name=name), results=results(path, **findings))


def judged(job: Job) -> Job:
    """The job with the results that it records: it judges what its steps report."""
    return replace(job, results=tuple(step_results.judged(it, SCRUBBING) for it in job.results))


def passed(record: Record, at: Moment = NOW, policy: Policy = ENFORCE) -> ev.ScrubPassed:
    """The end of a job that went well, with the receipt that the verdict writes."""
    assert record.scrubs.job is not None
    done = replace(record.scrubs.job, results=results(record.scrubs.job.path))
    judged = verdict.judge(done, record.health.baseline, policy)
    assert isinstance(judged, Measurements)
    receipt = verdict.write_receipt(record, done, judged, ("defaults", policy.proof_digest), at)
    return ev.ScrubPassed(done.id, receipt)


def grant(record: Record, *, announced: bool = True, epoch: str = "epoch-1", proven: bool = True) -> Grant:
    """A yes on the strength of what the record holds."""
    receipt = record.scrubs.receipt.id if record.scrubs.receipt and proven else None
    return Grant("grant-1", NOW, epoch, announced, receipt)


def proof(record: Record) -> Receipt:
    """The receipt that stands."""
    assert record.scrubs.receipt is not None
    return record.scrubs.receipt


def quarantine(ailment: Ailment = LOST, next_probe: float | None = NOW.uptime + 60) -> Quarantine:
    """A quarantine that began now."""
    return Quarantine(ailment, NOW, "autoclave", Baseline(), 0, next_probe)


def but(record: Record, **fields: object) -> Record:
    """The record with other values of these fields, each in the part that has it."""
    for part in ("tenancy", "scrubs", "health"):
        held = getattr(record, part)
        own = {name: fields.pop(name) for name in list(fields) if hasattr(held, name)}
        record = replace(record, **{part: replace(held, **own)})
    return replace(record, **fields)  # type: ignore[arg-type] # by name


def live(record: Record | None, *events: ev.Event, at: Moment = NOW) -> Record:
    """The record after these events."""
    for event in events:
        record = states.apply(record, ev.LedgerEntry(0, DEVICE.uuid, at, "op", event))
    assert record is not None
    return record


def noted(record: Record, answer: object, at: Moment = NOW) -> Any:  # noqa: ANN401 - tests read its optional fields
    """The record after the event that this answer wants recorded first."""
    assert isinstance(answer, RecordFirst), answer
    return live(record, answer.event, at=at)


UNKNOWN = live(None, ev.Discovered(DEVICE, HERE))
FIRST_LOOK = live(UNKNOWN, ev.ScrubStarted(job(ScrubPath.SLOW, Trigger.FIRST_LOOK)))
CLEAN = live(FIRST_LOOK, passed(FIRST_LOOK))
GRANTED = live(CLEAN, ev.Granted(grant(CLEAN)))
UNANNOUNCED = live(CLEAN, ev.Granted(grant(CLEAN, announced=False)))
KEPT = live(CLEAN, ev.Granted(replace(grant(CLEAN, announced=False), until_release=True)))
UNPROVEN = live(UNKNOWN, ev.GrantedUnproven(grant(UNKNOWN), "observe"))
IN_USE = live(GRANTED, ev.PutInUse(Owner(A, NOW, seen=True)))
IN_USE_BY_B = live(GRANTED, ev.PutInUse(Owner(B, NOW, seen=True)))
CROWDED = live(IN_USE, ev.PutInUse(Owner(A, NOW, seen=True, crowded=True)))
USED_BY_HOST = live(GRANTED, ev.PutInUse(Owner(None, NOW, unannounced=True)))
USED_BY_B = live(GRANTED, ev.PutInUse(Owner(B, NOW, seen=True, unannounced=True)))
VISITED_UNANNOUNCED = live(UNANNOUNCED, ev.PutInUse(Owner(B, NOW, seen=True, unannounced=True)))
OF_CLAIM = live(CLEAN, ev.Granted(replace(grant(CLEAN, announced=False), until_release=True, owner="claim 7")))
KEPT_FOR_CLAIM = live(OF_CLAIM, ev.Released("its proof ended", restart=True))
VISITED_KEPT = live(KEPT, ev.PutInUse(Owner(B, NOW, seen=True, unannounced=True)))
VISITED_UNPROVEN = live(UNPROVEN, ev.PutInUse(Owner(B, NOW, seen=True, unannounced=True)))
VISITED_BY_NO_POD = live(GRANTED, ev.PutInUse(Owner("container:0123456789ab", NOW, seen=True, unannounced=True)))
FOUND_IN_USE = live(UNKNOWN, ev.PutInUse(Owner(B, NOW, seen=True, unannounced=True)))
DIRTY = live(IN_USE, ev.Released("its pod is gone"))
SOILED = live(CLEAN, ev.Soiled("it was used without a grant", (FOREIGN,)))
SCRUBBING = live(DIRTY, ev.ScrubStarted(job()))
SET_BACK = live(SCRUBBING, ev.ScrubFailed("job-1", "a process is on it"))
QUARANTINED = live(CLEAN, ev.Quarantined(quarantine()))
STICKY = live(CLEAN, ev.Quarantined(quarantine(PULLED, None)))
PROBED = live(QUARANTINED, ev.ProbationStarted(job(ScrubPath.RESET, Trigger.PROBATION), "autoclave"))
REINSTATED = live(STICKY, ev.ProbationStarted(job(ScrubPath.SLOW, Trigger.REINSTATE), "ann"))
SICK_IN_USE = live(IN_USE, ev.AilmentFound(LOST))
SICK_GRANTED = live(GRANTED, ev.AilmentFound(LOST))
SICK_DIRTY = live(SICK_IN_USE, ev.Released("its pod is gone"))
LIVES = {name: value for name, value in list(globals().items()) if isinstance(value, Record)}


def no_reset(_record: Record) -> bool:
    """No sibling is being reset."""
    return False


def facts(  # noqa: PLR0913 - what may be seen
    holders: tuple[Holder, ...] | None = (),
    *,
    alive: bool | None = None,
    incarnation: Incarnation = HERE,
    epoch: str = "epoch-1",
    since: float = 0.0,
    siblings: bool | None = False,
    vitals: Vitals | None = WELL,
    assigned_pods: Collection[str] | None = None,
    bystander_pods: Collection[str] = (),
) -> Facts:
    """What is seen of a device that is well and that nobody uses, but for what is said."""
    given = None if assigned_pods is None else frozenset(assigned_pods)
    return Facts(
        incarnation=incarnation,
        holders=holders,
        pods={},
        owner_alive=alive,
        starting_pod_alive=None,
        siblings_busy=siblings,
        vitals=vitals,
        shortage="",
        held_up="",
        bystander_pods=frozenset(bystander_pods),
        domain_resetting=False,
        observed_since=since,
        unobserved="",
        used_at=-math.inf,
        used_by="",
        users_exempt=False,
        use_unsure="",
        use_reading=None,
        owner_left=False,
        successor=None,
        withheld=False,
        epoch=epoch,
        assigned_pods=given,
        hung=None,
        at=NOW,
    )


def events_about(record: Record, at: Moment = NOW) -> dict[type[ev.Event], ev.Event]:
    """One event of each kind, each about this very record: its job, its receipt, its clock."""
    running = record if record.scrubs.job else FIRST_LOOK
    name = running.scrubs.job.id if running.scrubs.job else ""
    every = (
        ev.Discovered(DEVICE, HERE),
        ev.Described(replace(DEVICE, index=3)),
        ev.Distrusted("the node was rebooted", REBOOTED if record.incarnation == HERE else HERE),
        ev.Granted(grant(record)),
        ev.GrantedUnproven(grant(record, proven=False), "not scrubbed"),
        ev.LetIn((A, B)),
        ev.Deferred(),
        ev.PutInUse(Owner(B, at)),
        ev.Released("its pod is gone"),
        ev.Soiled("it was used without a grant", (FOREIGN,)),
        ev.OpenAttempted(OPENER, record.tenancy.number, record.state in (State.GRANTED, State.IN_USE)),
        ev.FenceMissed("it was taken away"),
        ev.ScrubStarted(job(name="job-2")),
        ev.ProbationStarted(job(ScrubPath.RESET, Trigger.PROBATION, "job-2"), "autoclave"),
        ev.StepsRecorded(name, (result(Step.EVICT),), Step.CLEAR),
        ev.Escalated(name, "clear failed", ScrubPath.RESET),
        passed(running, at),
        ev.TenancyClosed(record.fence.ended or EndedTenancy(7, HERE.boot_id, at), "r", UNREAD),
        ev.ScrubFailed(name, "a process is on it"),
        ev.ScrubInterrupted(name, "the service was stopped"),
        ev.AilmentFound(LOST),
        ev.Quarantined(quarantine()),
        ev.ErrorsNoted(((13, 2),), record.health.baseline.last_xid + 2),
        ev.Reinstated("ann: it was the cable"),
        ev.QuarantineWithdrawn("ann: it was another node"),
    )
    return {type(event): event for event in every}


@st.composite
def walks(draw: st.DrawFn, most: int = 12) -> list[tuple[Record, ev.Event, Record]]:
    """A life: legal events in any order, each with the record before and after it."""
    record, steps = UNKNOWN, []
    for number in range(draw(st.integers(0, most))):
        at = later(10.0 * number)
        kind = draw(st.sampled_from(list(states.TABLE[record.state])))
        event = events_about(record, at)[kind]
        try:
            after = live(record, event, at=at)
        except ev.IllegalEventError:  # a guard: the record would not take it, and did not change
            continue
        steps.append((record, event, after))
        record = after
    return steps


def records() -> st.SearchStrategy[Record]:
    """A device at any point of any life, or at one of the points that have a name."""
    wandered = walks().map(lambda steps: steps[-1][2] if steps else UNKNOWN)
    return st.sampled_from(list(LIVES.values())) | wandered


def observations(holders: st.SearchStrategy[tuple[Holder, ...] | None] | None = None) -> st.SearchStrategy[Facts]:
    """Anything that could be seen."""
    somebody = st.lists(st.sampled_from([OF_A, OF_B, LEFTOVER, FOREIGN]), max_size=2).map(tuple)
    return st.builds(
        facts,
        holders if holders is not None else st.none() | somebody,
        alive=st.sampled_from([None, True, False]),
        incarnation=st.sampled_from([HERE, HERE, REBOOTED, RELOADED]),
        epoch=st.sampled_from(["epoch-1", "epoch-2"]),
        since=st.sampled_from([0.0, NOW.uptime + 1]),
        siblings=st.sampled_from([None, True, False]),
        vitals=st.sampled_from([None, WELL, XID_79, Vitals(lost=True), RELAID, Vitals(leaked_bytes=7)]),
        assigned_pods=st.sampled_from([None, (), (A,), (B,), (A, B)]),
        bystander_pods=st.sampled_from([(), (B,)]),
    )


def policies() -> st.SearchStrategy[Policy]:
    """Any of the policies above."""
    return st.sampled_from(POLICIES)


def moments() -> st.SearchStrategy[Moment]:
    """Just now, within the budgets, after them, and when every proof is old."""
    return st.sampled_from([later(0.5), later(30), later(3600), later(200_000)])
