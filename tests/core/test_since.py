"""What ends each count, and each time since the first of something, and that nothing else does.

Random lives, against a model that remembers all that has happened and answers by definition: all since the last end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from scrubber.core import events as ev
from scrubber.core import next_action, ownership, proof, states, stuck
from scrubber.core.ailment_traits import AILMENTS
from scrubber.core.changes import MANY_ALLOCATIONS
from scrubber.core.guarded import UNKNOWN
from scrubber.core.model import (
    Ailment,
    AilmentKind,
    Blame,
    Evicted,
    Holder,
    Incarnation,
    Moment,
    Outcome,
    Owner,
    Quarantine,
    ScrubPath,
    Step,
    StepResult,
    Stuck,
    Trigger,
)
from scrubber.core.record import Record
from tests.core import lives
from tests.core.lives import ENFORCE, FOREIGN, HERE, NOW, REBOOTED, RELOADED, A, B, facts, live

LENGTH, LIVES, LOOKS = 60, 100, 200
PROCESSES = tuple(Holder(pid, 5.0, "orphan", None, "D") for pid in (71, 72, 73))
SICK = (AilmentKind.XID, AilmentKind.HEAT, AilmentKind.STUCK_PROCESS, AilmentKind.SCRUB_FAILED, AilmentKind.OPERATOR)
BLAMED = (Blame.DEVICE, Blame.SERVICE, Blame.UNDECIDED, Blame.NODE_OR_DEVICE)
GRANTS, JOB_ENDS = (ev.Granted, ev.GrantedUnproven), (ev.ScrubFailed, ev.ScrubInterrupted, ev.Quarantined)


@dataclass(frozen=True)
class Happened:
    """An event, and what the model needs beside it."""

    event: ev.Event
    at: Moment
    before: Record
    results: tuple[StepResult, ...]  # of the job that ran, if one did
    trigger: Trigger | None
    incarnation: Incarnation  # before the event
    quarantined: AilmentKind | None

    @property
    def proves(self) -> bool:
        return isinstance(self.event, ev.ScrubPassed)

    @property
    def reboots(self) -> bool:
        return isinstance(self.event, ev.Distrusted) and self.event.incarnation.boot_id != self.incarnation.boot_id

    @property
    def forgives(self) -> bool:
        """A proof, a person, or a boot or driver that no process and no failure outlives."""
        renewed = isinstance(self.event, ev.Distrusted) and self.event.incarnation != self.incarnation
        return renewed or isinstance(self.event, ev.ScrubPassed | ev.Reinstated)

    def leaves(self, blame: Blame) -> bool:
        """Whether a job has ended without a proof, after a step that failed with this blame."""
        return isinstance(self.event, JOB_ENDS) and any(it.blame is blame for it in self.results)


@dataclass
class Life:
    """Everything that has happened to a device, in order."""

    record: Record = lives.UNKNOWN
    past: list[Happened] = field(default_factory=list)
    results: tuple[StepResult, ...] = ()
    trigger: Trigger | None = None
    incarnation: Incarnation = HERE
    quarantined: AilmentKind | None = None

    def add(self, event: ev.Event, at: Moment) -> None:
        after = live(self.record, event, at=at)
        known = self.results, self.trigger, self.incarnation, self.quarantined
        self.past.append(Happened(event, at, self.record, *known))
        self.record = after
        match event:
            case ev.ScrubStarted(job) | ev.ProbationStarted(job):
                self.results, self.trigger = (), job.trigger
            case ev.StepsRecorded(results=results):
                self.results = (*self.results, *results)
            case ev.Distrusted(incarnation=now):
                self.incarnation = now
            case ev.Quarantined(quarantine):
                self.results, self.trigger, self.quarantined = (), None, quarantine.ailment.kind
            case ev.ScrubPassed() | ev.Reinstated():
                self.results, self.trigger, self.quarantined = (), None, None
            case ev.ScrubFailed() | ev.ScrubInterrupted():
                self.results, self.trigger = (), None
            case _:
                pass


# -- what could happen next


def evicted(chance: random.Random) -> StepResult:
    """Passed, failed for a process that does not end, or was held up."""
    found = tuple(it for it in PROCESSES if chance.random() < 0.3)
    outcome = chance.choice([Outcome.PASSED, *[Outcome.FAILED] * 3, Outcome.ABORTED, Outcome.TIMED_OUT])
    found = found if outcome is Outcome.FAILED else ()
    return replace(lives.result(Step.EVICT, outcome=outcome, stuck=found), blame=Blame.TENANT)


def steps_recorded(record: Record, chance: random.Random) -> ev.StepsRecorded:
    """What has begun has ended, or one or two other steps have; a clear may begin after them."""
    assert record.scrubs.job is not None
    begun = record.scrubs.job.begun
    ended = [begun] if begun else chance.choices([Step.EVICT, Step.EVICT, Step.SCRATCH], k=chance.choice([0, 1, 1, 2]))
    begins = chance.choice([None, None, None, Step.CLEAR])
    return ev.StepsRecorded(record.scrubs.job.id, tuple(ended_as(step, chance) for step in ended), begins)


def ended_as(step: Step, chance: random.Random) -> StepResult:
    if step is Step.EVICT:
        return evicted(chance)
    outcome = chance.choice([Outcome.PASSED, Outcome.FAILED, Outcome.DIED])
    return replace(lives.result(step, outcome=outcome), blame=chance.choice(BLAMED))


def quarantined(record: Record, at: Moment, chance: random.Random) -> ev.Event:
    if record.scrubs.job is not None and record.health.quarantine is not None and chance.random() < 0.5:
        return next_action.interruption(record, "killed", at)
    ailment = Ailment(chance.choice(SICK), "x", sticky=chance.random() < 0.2)
    return next_action.quarantine(record, ailment, "autoclave", lives.WELL, ENFORCE, at, 0.0)


def next_event(record: Record, at: Moment, chance: random.Random) -> ev.Event | None:
    """An event of a kind that the table allows; as the service would decide it, where it counts."""
    kinds = list(states.TABLE[record.state])
    kind = chance.choice([*kinds, *[ev.StepsRecorded] * 8] if record.scrubs.job is not None else kinds)
    name = record.scrubs.job.id if record.scrubs.job is not None else ""
    path, ended = chance.choice(list(ScrubPath)), record.fence.ended
    made: dict[type[ev.Event], Callable[[], ev.Event | None]] = {
        ev.Distrusted: lambda: ev.Distrusted(
            "x", chance.choice([record.incarnation, record.incarnation, HERE, REBOOTED, RELOADED]),
            older_ledger=chance.random() < 0.2,
        ),
        ev.Granted: lambda: ev.Granted(lives.grant(record, announced=chance.random() < 0.7)),
        ev.GrantedUnproven: lambda: ev.GrantedUnproven(lives.grant(record, proven=False), "observe"),
        ev.PutInUse: lambda: ev.PutInUse(Owner(chance.choice([A, B]), at, unannounced=chance.random() < 0.3)),
        ev.Released: lambda: ev.Released("x", restart=chance.random() < 0.3),
        ev.Soiled: lambda: proof.ended(record, facts((FOREIGN,), incarnation=record.incarnation)),
        ev.LetIn: lambda: ev.LetIn((A, B)),
        ev.Deferred: ev.Deferred,
        ev.OpenAttempted: lambda: ev.OpenAttempted(lives.OPENER, record.tenancy.number, held=False),
        ev.FenceMissed: lambda: ev.FenceMissed("it was taken away"),
        ev.ScrubStarted: lambda: ev.ScrubStarted(
            lives.job(path, chance.choice([Trigger.RELEASE, Trigger.RETRY]))
        ),
        ev.ProbationStarted: lambda: ev.ProbationStarted(
            lives.job(path, chance.choice([Trigger.PROBATION, Trigger.PROBATION, Trigger.REINSTATE])), "autoclave"
        ),
        ev.StepsRecorded: lambda: steps_recorded(record, chance),
        ev.ScrubPassed: lambda: lives.passed(record, at),
        ev.TenancyClosed: lambda: None if ended is None else ev.TenancyClosed(ended, "r", UNKNOWN),
        ev.ScrubFailed: lambda: ev.ScrubFailed(name, "x"),
        ev.ScrubInterrupted: lambda: ev.ScrubInterrupted(name, "x"),
        ev.Escalated: lambda: ev.Escalated(name, "x", ScrubPath.RESET),
        ev.Quarantined: lambda: quarantined(record, at, chance),
        ev.Reinstated: lambda: ev.Reinstated("ann"),
        ev.AilmentFound: lambda: ev.AilmentFound(lives.LOST),
        ev.QuarantineWithdrawn: lambda: ev.QuarantineWithdrawn("ann"),
        ev.ErrorsNoted: lambda: ev.ErrorsNoted(((13, 2),), record.health.baseline.last_xid + 2),
        ev.Described: lambda: ev.Described(lives.DEVICE),
    }  # fmt: skip
    return made[kind]()


def life(seed: int) -> Iterator[Life]:
    """One random life, after each of its events."""
    chance, led, at = random.Random(seed), Life(), NOW  # noqa: S311 - no secret
    for _ in range(LENGTH):
        at = Moment(at.wall + 1, at.uptime + 1)
        event = next_event(led.record, at, chance)
        if event is None:
            continue
        try:
            led.add(event, at)
        except ev.IllegalEventError:  # a guard: nothing has happened
            continue
        yield led


# -- what ends what


@dataclass(frozen=True)
class Law:
    """``read`` is what the record says; ``begins`` counts, and ``ends`` ends it: nothing else does."""

    read: Callable[[Record], object]
    begins: Callable[[Happened], bool]
    ends: Callable[[Happened], bool]
    what: Callable[[Sequence[Happened]], object] = len  # of those that count, since the last end

    def expected(self, past: Sequence[Happened]) -> object:
        counted: list[Happened] = []
        for it in reversed(past):
            if self.begins(it):
                counted.insert(0, it)
            if self.ends(it):
                break
        return self.what(counted)


def of(*kinds: type[ev.Event]) -> Callable[[Happened], bool]:
    return lambda it: isinstance(it.event, kinds)


def first(past: Sequence[Happened]) -> Moment | None:
    return past[0].at if past else None


def forgives(it: Happened) -> bool:
    return it.forgives


def left(it: Happened) -> bool:
    """The end of a tenant with an admitted start."""
    goes = isinstance(it.event, ev.Released | ev.Distrusted) and not getattr(it.event, "restart", False)
    return goes and not it.before.tenancy.kept_for and it.before.tenancy.start_admitted


def handed_out(past: Sequence[Happened]) -> int:
    """How often, where an older ledger lacks many."""
    return sum(MANY_ALLOCATIONS if isinstance(it.event, ev.Distrusted) else 1 for it in past)


def allocated(it: Happened) -> bool:
    announced = isinstance(it.event, GRANTS) and it.event.grant.announced
    return announced or (isinstance(it.event, ev.Distrusted) and it.event.older_ledger)


def came_back(it: Happened) -> bool:
    faulty = it.quarantined is not None and not AILMENTS[it.quarantined].blameless
    return it.proves and it.trigger is Trigger.PROBATION and faulty


def brought_back(it: Happened) -> bool:
    return isinstance(it.event, ev.Reinstated) or (it.proves and it.trigger is Trigger.REINSTATE)


def began(it: Happened) -> bool:
    return isinstance(it.event, (*GRANTS, ev.PutInUse))


def begins_anew(it: Happened) -> bool:
    """A proof or a loss of trust, and a grant after grants that nobody has started on."""
    granted = isinstance(it.event, GRANTS) and it.before.tenancy.span is None
    return granted or isinstance(it.event, ev.ScrubPassed | ev.Soiled | ev.Distrusted)


def cleared(it: Happened) -> bool:
    return isinstance(it.event, (*JOB_ENDS, ev.Escalated)) and (
        any(result.step is Step.CLEAR for result in it.results)
        or (it.before.scrubs.job is not None and it.before.scrubs.job.begun is Step.CLEAR)
    )


def quarantine(read: Callable[[Quarantine], object], none: object) -> Callable[[Record], object]:
    return lambda record: none if record.health.quarantine is None else read(record.health.quarantine)


UNTIL_PROVEN = of(ev.ScrubPassed, ev.Reinstated)
LAWS = {
    "scrubs.setback.count": Law(
        lambda it: it.scrubs.setback.count if it.scrubs.setback is not None else 0, of(ev.ScrubFailed), forgives),
    "scrubs.undecided": Law(
        lambda it: it.scrubs.undecided, lambda it: it.leaves(Blame.UNDECIDED), forgives, bool),
    "scrubs.node_or_device": Law(
        lambda it: it.scrubs.node_or_device, lambda it: it.leaves(Blame.NODE_OR_DEVICE), forgives, first),
    "scrubs.soiled": Law(lambda it: it.scrubs.soiled, of(ev.Soiled), of(*GRANTS, ev.PutInUse)),
    "scrubs.half_cleared": Law(
        lambda it: it.scrubs.half_cleared, cleared, of(*GRANTS, ev.PutInUse, ev.ScrubPassed), bool),
    "health.quarantine.since": Law(
        quarantine(lambda it: it.since, None), of(ev.Quarantined), UNTIL_PROVEN, first),
    "health.quarantine.probes": Law(
        quarantine(lambda it: it.probes, 0), of(ev.ProbationStarted), UNTIL_PROVEN),
    "health.returns": Law(
        lambda it: it.health.returns, came_back, brought_back, lambda past: tuple(it.at.wall for it in past[-10:])),
    "tenancy.began": Law(
        lambda it: it.tenancy.began, began, begins_anew,
        lambda past: None if not past else
        past[0].event.owner.since.uptime if isinstance(past[0].event, ev.PutInUse) else past[0].at.uptime),
    "tenancy.allocations": Law(lambda it: it.tenancy.allocations, allocated, left, handed_out),
}  # fmt: skip


def answers_of(past: Sequence[Happened]) -> list[tuple[tuple[Holder, ...], Moment]]:
    """What evicts have said since everything was forgiven: who does not end, or nobody. Held up, they say nothing."""
    said: list[tuple[tuple[Holder, ...], Moment]] = []
    for it in past:
        if it.forgives:
            said = []
        elif isinstance(it.event, ev.StepsRecorded):
            evicts = [(result.outcome, result.findings) for result in it.event.results]
            said += [
                (found.stuck, it.at)
                for outcome, found in evicts
                if isinstance(found, Evicted) and (outcome is Outcome.PASSED or found.stuck)
            ]
    return said


def held(said: Sequence[tuple[tuple[Holder, ...], Moment]]) -> Stuck | None:
    """By definition: back from the newest answer, as long as each has a process of the one before."""
    since = None
    for number in range(len(said) - 1, -1, -1):
        here, since_here = said[number]
        if not here or (since is not None and not {it.pid for it in here} & {it.pid for it in said[number + 1][0]}):
            break
        since = since_here
    return None if since is None else Stuck(said[-1][0], since)


def test_only_what_ends_a_count_or_a_time_ends_it():
    seen: dict[str, set[object]] = {name: set() for name in LAWS}
    for seed in range(LIVES):
        for led in life(seed):
            for name, law in LAWS.items():
                said = law.read(led.record)
                assert said == law.expected(led.past), f"{name} in life {seed}, after {led.past[-1].event}"
                seen[name].add(said)
            assert led.record.scrubs.stuck == held(answers_of(led.past)), f"stuck in life {seed}"
    assert all(len(values) > 1 for values in seen.values()), "a count that never counts shows nothing"


@pytest.mark.parametrize("seed", range(4))
def test_only_a_working_holder_ends_the_time_of_hanging_ones(seed):
    chance, before = random.Random(seed), None  # noqa: S311 - no secret
    said: list[tuple[tuple[Holder, ...], Moment]] = []
    for number in range(LOOKS):
        there = tuple(it for it in PROCESSES if chance.random() < 0.6)
        there = tuple(replace(it, state=chance.choice("DDDDDDDS")) for it in there)
        unknown, at = chance.random() < 0.3, lives.later(float(number))
        looks = replace(facts(None if unknown else there), at=at)
        before = stuck.after_answer(before, ownership.hanging(looks), at)
        if not unknown:
            said.append((there if all(it.state == "D" for it in there) else (), at))
        assert before == held(said)
    assert len({there for there, _ in said}) > 1
