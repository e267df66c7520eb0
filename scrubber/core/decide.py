"""What to do about a device: a record, fresh facts, the policy and the time in; one small answer out.

Rule 1: unknown is no. Facts that could not be gathered (``None``) never lead to a yes or to a deed.
Rule 2: a process of a live container is never touched; what may be ended is decided here (``terminable``).
Rule 3: an answer ``Note`` means: this has happened, record it, look again, ask again.

Sentences in answers go to tenants: they name the device asked for and nothing else. What an operator needs to know
goes into events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from policies.model import Eviction, Mode, Policy, Route
from scrubber.core import events as ev
from scrubber.core.model import (
    Ailment,
    Blame,
    Facts,
    Holder,
    Moment,
    Owner,
    Path,
    Quarantine,
    Receipt,
    Record,
    Sickness,
    State,
    Step,
    Trigger,
    Vitals,
)
from scrubber.core.verdict import diagnose, known
from scrubber.errors import Reason

FLAPPING = "it came back from quarantine {count} times within the flap window"
RETRY_FIRST = 1.0  # seconds until a scrub that failed for a process on the device is tried again ...
RETRY_LONGEST = 60.0  # ... doubling up to this: a process may stay for days, and each try looks through /proc


@dataclass(frozen=True, slots=True)
class HandOut:
    """Yes. ``unproven`` says why nothing was proven, under policy ``observe`` only."""

    unproven: str | None = None


@dataclass(frozen=True, slots=True)
class Scrub:
    """Start a job."""

    path: Path
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class Join:
    """A job is under way: wait for it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now; this may pass by itself within moments."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """No."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Note:
    """Record this first, then ask again."""

    event: ev.Event


@dataclass(frozen=True, slots=True)
class Fenced:
    """A job must not go on. The reason is for operators."""

    blame: Blame
    why: str


@dataclass(frozen=True, slots=True)
class Proceed:
    """Nothing is in the way, and nothing needs to be recorded."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Try a quarantined device again."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """Probation waits until this uptime."""

    until: float


@dataclass(frozen=True, slots=True)
class AskOperator:
    """Only a person may bring this device back."""


@dataclass(frozen=True, slots=True)
class Advert:
    """What ListAndWatch says of a device, and why."""

    healthy: bool
    why: str


AcquireAnswer = HandOut | Scrub | Join | Wait | Refuse | Note
StartAnswer = Proceed | HandOut | Scrub | Join | Refuse | Note
ReleaseAnswer = Proceed | Refuse | Note
ProbationAnswer = Probe | NotYet | AskOperator
TendAnswer = Note | Scrub | Probe | Proceed


def acquire(record: Record, facts: Facts, policy: Policy, now: Moment) -> AcquireAnswer:
    """May this device go to a new tenant?"""
    answer = _acquire(record, facts, policy, now)
    if policy.mode is not Mode.OBSERVE or record.state is State.QUARANTINED:
        return answer
    match answer:
        case Wait(_, message) | Refuse(_, message):
            return HandOut(unproven=message)
        case Scrub(path, trigger):
            return HandOut(unproven=f"not scrubbed: would have taken the {path.value} path ({trigger.value})")
        case HandOut() | Join() | Note():
            return answer


def _acquire(record: Record, facts: Facts, policy: Policy, now: Moment) -> AcquireAnswer:
    stale = distrust(record, facts)
    if stale is not None:
        return Note(stale)
    if record.sickness is not None:
        return Refuse(Reason.SICK, f"cannot hand out {record.device.uuid}: it is unhealthy")
    match record.state:
        case State.QUARANTINED:
            return Refuse(Reason.QUARANTINED, f"cannot hand out {record.device.uuid}: it is quarantined")
        case State.SCRUBBING:
            return Join()
        case State.CLEAN:
            return _from_clean(record, facts, policy, now)
        case State.GRANTED if reusable(record, facts, policy, now):
            return HandOut()
        case State.GRANTED | State.EXPOSED:
            return _in_use(record, facts) or Note(ev.Released("it was asked for again and its last user is gone"))
        case State.DIRTY | State.UNKNOWN:
            return _from_dirty(record, facts, policy, Trigger.ACQUIRE)


def start(record: Record, facts: Facts, policy: Policy, owner: str, now: Moment) -> StartAnswer:
    """May a container of this owner start on it? The second gate: the first may have been skipped by a restart."""
    answer = _start(record, facts, policy, owner, now)
    in_tenancy = record.state in (State.GRANTED, State.EXPOSED)
    if policy.mode is Mode.OBSERVE and in_tenancy and isinstance(answer, Refuse):
        known_owner = record.owner is not None and record.owner.container == owner
        return Proceed() if known_owner else Note(ev.Exposed(Owner(owner, now)))
    return answer


def _start(record: Record, facts: Facts, policy: Policy, owner: str, now: Moment) -> StartAnswer:
    stale = distrust(record, facts)
    if stale is not None:
        return Note(stale)
    match record.state:
        case State.QUARANTINED:
            return Refuse(Reason.QUARANTINED, f"cannot start on {record.device.uuid}: it is quarantined")
        case State.SCRUBBING:
            return Join()
        case State.CLEAN | State.DIRTY | State.UNKNOWN:
            # No grant was seen: a reboot, or the service was away. It must pass the first gate now.
            return _as_start(acquire(record, facts, policy, now))
        case State.GRANTED if record.sickness is not None:
            return Refuse(Reason.SICK, f"cannot start on {record.device.uuid}: it is unhealthy")
        case State.GRANTED if (
            policy.mode is Mode.ENFORCE and facts.holders == () and not proof_stands(record.receipt, facts, policy, now)
        ):
            return Note(ev.Released("its proof ended before it was started on"))
        case State.GRANTED:
            return _start_granted(record, facts, owner, now)
        case State.EXPOSED:
            return _start_exposed(record, facts, owner, now)


def release(record: Record, facts: Facts) -> ReleaseAnswer:
    """Has the last user really gone? The caller's word is not enough."""
    if record.state not in (State.GRANTED, State.EXPOSED):
        return Proceed()
    busy = _in_use(record, facts)
    if busy is not None:
        return Refuse(busy.reason, busy.message.replace("hand out", "take back"))
    return Note(ev.Released("it was given back"))


def fence(record: Record, job: str, step: Step, facts: Facts) -> Fenced | None:
    """Whether a job may go on with a step; asked again just before each one.

    The job may have outlived its caller, and the device may have found a new user meanwhile.
    """
    if record.state is not State.SCRUBBING or record.job is None or record.job.id != job:
        return Fenced(Blame.SERVICE, "the device does not belong to this job any more")
    if facts.incarnation != record.incarnation:
        return Fenced(Blame.SERVICE, "the node or the driver was restarted under the job")
    if facts.holders is None:
        return Fenced(Blame.TENANT, "it cannot be proven that nobody uses the device")
    if _container(facts.holders) is not None:
        return Fenced(Blame.TENANT, f"a live container uses the device ({_names(facts.holders)})")
    if step is not Step.EVICT and facts.holders:
        return Fenced(Blame.TENANT, f"the device is used by {_names(facts.holders)}")
    if step is Step.RESET and facts.siblings_busy is not False:
        return Fenced(Blame.TENANT, "a device of the same reset domain is in use")
    return None


def _names(holders: tuple[Holder, ...]) -> str:
    return ", ".join(f"{holder.command} (pid {holder.pid})" for holder in holders)


def interruption(record: Record, why: str, now: Moment) -> ev.Event:
    """A job was cut off. A device on probation goes back to where it was."""
    if record.job is None:
        raise ValueError(f"{record.device.uuid} has no job to interrupt")
    if record.quarantine is None:
        return ev.ScrubInterrupted(record.job.id, why)
    again = now.uptime if record.quarantine.next_probe is not None else None
    return ev.Quarantined(replace(record.quarantine, next_probe=again))


def probation(record: Record, now: Moment) -> ProbationAnswer:
    """Is it time to try a quarantined device again?"""
    due = record.quarantine.next_probe if record.quarantine else None
    if due is None:
        return AskOperator()
    return Probe() if now.uptime >= due else NotYet(due)


def tend(record: Record, facts: Facts, policy: Policy, now: Moment, chance: float) -> TendAnswer:
    """What the monitor should do about a device nobody asked for just now. ``chance`` in [0, 1) spreads probes."""
    stale = distrust(record, facts)
    if stale is not None:
        return Note(stale)
    if record.state is State.UNKNOWN and (container := _container(facts.holders or ())) is not None:
        return Note(ev.Exposed(Owner(container, now, seen=True)))
    sick = _sickness(record, facts, policy)
    if sick is not None:
        return _isolate(record, sick, facts.vitals, policy, now, chance)
    match record.state:
        case State.SCRUBBING:
            return Proceed()
        case State.QUARANTINED:
            due = isinstance(probation(record, now), Probe)
            return Probe() if due and _clearable(record, facts, policy) else Proceed()
        case State.GRANTED | State.EXPOSED:
            return _tend_tenancy(record, facts, now)
        case State.CLEAN if facts.holders:
            return Note(ev.Soiled("it was used without a grant", facts.holders))
        case State.CLEAN if facts.vitals is not None and facts.vitals.leaked_bytes:
            return Note(ev.Soiled(f"{facts.vitals.leaked_bytes} bytes are held by no visible process"))
    if policy.mode is Mode.OBSERVE:
        return Proceed()
    return _tend_idle(record, facts, policy, now)


def advertise(record: Record, policy: Policy, now: Moment) -> Advert:
    """Whether the kubelet may be told that this device is healthy."""
    if record.quarantine is not None:
        return Advert(healthy=False, why=f"quarantined: {record.quarantine.sickness.detail}")
    if record.sickness is not None:
        return Advert(healthy=False, why=f"sick: {record.sickness.detail}")
    if policy.mode is Mode.OBSERVE:
        return Advert(healthy=True, why="policy observe refuses nothing")
    match record.state:
        case State.CLEAN | State.GRANTED | State.EXPOSED:
            return Advert(healthy=True, why=record.state.value)
        case State.SCRUBBING if _soon_done(record, policy, now):
            return Advert(healthy=True, why="being scrubbed, clean within the allocate budget")
        case State.DIRTY if record.setback is None and _just_released(record, policy, now):
            return Advert(healthy=True, why="released, about to be scrubbed")
        case State.UNKNOWN | State.DIRTY | State.SCRUBBING | State.QUARANTINED:
            return Advert(healthy=False, why=record.state.value)


def distrust(record: Record, facts: Facts) -> ev.Distrusted | None:
    """A proof is worth nothing after a reboot or under another driver instance."""
    if record.incarnation == facts.incarnation or record.state is State.SCRUBBING:
        return None
    rebooted = record.incarnation.boot_id != facts.incarnation.boot_id
    return ev.Distrusted("the node was rebooted" if rebooted else "the driver was loaded anew", facts.incarnation)


def reusable(record: Record, facts: Facts, policy: Policy, now: Moment) -> bool:
    """Whether a grant can be given again without a scrub: announced, never started on, in the same kubelet life."""
    grant = record.grant
    if grant is None or record.owner is not None or not proof_stands(record.receipt, facts, policy, now):
        return False
    return grant.announced and grant.epoch == facts.epoch and facts.holders == ()


def terminable(holder: Holder, record: Record, policy: Policy) -> bool:
    """Whether policy lets us end this process: never one of a live container."""
    if holder.container is not None:
        return False
    leftover = record.tenancy_began is not None and holder.started >= record.tenancy_began
    rule = policy.evict.leftovers if leftover else policy.evict.foreign
    return rule is Eviction.TERMINATE


def proof_stands(receipt: Receipt | None, facts: Facts, policy: Policy, now: Moment) -> bool:
    """Whether a receipt still proves what the policy in force asks for."""
    if receipt is None or receipt.policy_digest != policy.proof_digest:
        return False
    # A proof says that nobody has used the device since. While the service was away, nobody watched.
    if receipt.finished.uptime < facts.watched_since and not policy.proof.survives_restart:
        return False
    return now.uptime - receipt.finished.uptime <= policy.proof.max_age


def confine(
    record: Record, sickness: Sickness, by: str, vitals: Vitals | None, policy: Policy, now: Moment, chance: float
) -> ev.Quarantined:
    """The quarantine of a sick device: when it may be tried again, or never without a person."""
    rules = policy.quarantine.probation
    recent = [wall for wall in record.returns if now.wall - wall <= rules.flap_window]
    if len(recent) >= rules.flap_limit and not sickness.sticky:
        detail = f"{sickness.detail}; {FLAPPING.format(count=len(recent))}"
        sickness = Sickness(Ailment.FLAPPING, detail, sticky=True)
    before = record.quarantine
    probes = before.probes + 1 if before else 0
    pause = _growing(rules.first, rules.factor, rules.longest, probes) * (0.8 + 0.2 * chance)
    since = before.since if before else now
    # What waits for a person goes on waiting: a failed reinstatement must not start probation by itself.
    sticky = sickness.sticky or (before is not None and before.next_probe is None)
    due = None if sticky else now.uptime + pause
    return ev.Quarantined(Quarantine(sickness, since, by, known(vitals, record.baseline), probes, due))


def _growing(first: float, factor: float, longest: float, times: int) -> float:
    """A pause that grew so many times. Multiplied step by step: a power overflows after some weeks of tries."""
    pause = first
    for _ in range(times):
        pause = min(pause * factor, longest)
    return pause


def _from_clean(record: Record, facts: Facts, policy: Policy, now: Moment) -> AcquireAnswer:
    if facts.holders is None:
        return _unproven(record)
    if facts.holders:
        return Note(ev.Soiled("it was used without a grant", facts.holders))
    if not proof_stands(record.receipt, facts, policy, now):
        return Scrub(_path(record, policy), Trigger.PROOF_EXPIRED)
    return HandOut()


def _from_dirty(record: Record, facts: Facts, policy: Policy, trigger: Trigger) -> Scrub | Wait:
    if facts.holders is None:
        return _unproven(record)
    if not _clearable(record, facts, policy):
        return _busy(record)
    return Scrub(_path(record, policy), trigger)


def _clearable(record: Record, facts: Facts, policy: Policy) -> bool:
    """Nobody is on it but processes that a scrub may end."""
    return facts.holders is not None and all(terminable(holder, record, policy) for holder in facts.holders)


def _in_use(record: Record, facts: Facts) -> Wait | None:
    """Somebody who must not be disturbed is on it, or nobody can say."""
    named = record.owner is not None and record.owner.container is not None
    if facts.holders is None or (named and facts.owner_alive is None):
        return _unproven(record)
    if facts.owner_alive is True or _container(facts.holders) is not None:
        return _busy(record)
    return None


def _unproven(record: Record) -> Wait:
    return Wait(
        Reason.NOT_PROVEN_FREE, f"cannot hand out {record.device.uuid}: it cannot be proven that nobody uses it"
    )


def _busy(record: Record) -> Wait:
    return Wait(Reason.IN_USE, f"cannot hand out {record.device.uuid}: it is still in use")


def _container(holders: tuple[Holder, ...]) -> str | None:
    return next((holder.container for holder in holders if holder.container is not None), None)


def _path(record: Record, policy: Policy) -> Path:
    route = policy.paths.first_look if record.state is State.UNKNOWN else policy.paths.new_tenant
    return Path.SLOW if route is Route.SLOW or record.owed is Path.SLOW else Path.FAST


def _as_start(answer: AcquireAnswer) -> StartAnswer:
    """At a start there is no time to wait: the kubelet asks again by itself."""
    match answer:
        case Wait(reason, message) | Refuse(reason, message):
            return Refuse(reason, message.replace("hand out", "start on"))
        case Scrub(path, Trigger.ACQUIRE):
            return Scrub(path, Trigger.START)
        case _:
            return answer


def _start_granted(record: Record, facts: Facts, owner: str, now: Moment) -> StartAnswer:
    if facts.holders is None:
        return _as_start(_unproven(record))
    # Processes on it before its first start: the first gate's kubelet was restarted and this is that very tenant, or
    # somebody else took it. Only the owner's own container may be there.
    if any(holder.container != owner for holder in facts.holders):
        return _as_start(_busy(record))
    return Note(ev.Exposed(Owner(owner, now)))


def _start_exposed(record: Record, facts: Facts, owner: str, now: Moment) -> StartAnswer:
    if facts.holders is None:
        return _as_start(_unproven(record))
    others = any(holder.container != owner for holder in facts.holders)
    if record.owner is not None and record.owner.container == owner:
        return _as_start(_busy(record)) if others else Proceed()
    if record.owner is not None and record.owner.container is None and facts.holders and not others:
        return Note(ev.Exposed(Owner(owner, now)))
    busy = _in_use(record, facts)
    if busy is not None:
        return _as_start(busy)
    return Note(ev.Released("another owner is about to start and its last user is gone"))


def _sickness(record: Record, facts: Facts, policy: Policy) -> Sickness | None:
    """A diagnosis that was not acted upon yet. A job in progress judges for itself."""
    if record.state in (State.SCRUBBING, State.QUARANTINED):
        return None
    if record.sickness is not None:
        return None if record.state in (State.GRANTED, State.EXPOSED) else record.sickness
    return diagnose(facts.vitals, record.baseline, policy) if facts.vitals is not None else None


def _isolate(
    record: Record, sickness: Sickness, vitals: Vitals | None, policy: Policy, now: Moment, chance: float
) -> Note:
    if record.state in (State.GRANTED, State.EXPOSED):
        return Note(ev.Sickened(sickness))
    return Note(confine(record, sickness, "autoclave", vitals, policy, now, chance))


def _tend_tenancy(record: Record, facts: Facts, now: Moment) -> TendAnswer:
    if facts.holders is None:
        return Proceed()
    owner, user = record.owner, _container(facts.holders)
    if facts.holders and (owner is None or (owner.container is None and user is not None)):
        return Note(ev.Exposed(Owner(user, now, seen=user is not None)))
    if owner is None and record.sickness is not None and _announced(record):
        # Whoever it was given to asks again before it starts: nobody's end has to be waited for.
        return Note(ev.Released("it fell sick before anybody started on it"))
    if owner is None or user is not None:
        return Proceed()
    if facts.owner_alive is True and not owner.seen:
        return Note(ev.Exposed(replace(owner, seen=True)))
    # An owner that was never seen has not gone: its container may be about to start. Whoever asks for the device next
    # has a better reason to say so than we.
    if facts.owner_alive is False and owner.seen:
        return Note(ev.Released("its owner is gone"))
    return Proceed()


def _tend_idle(record: Record, facts: Facts, policy: Policy, now: Moment) -> TendAnswer:
    if record.state is State.CLEAN:
        expired = not proof_stands(record.receipt, facts, policy, now)
        return Scrub(_path(record, policy), Trigger.PROOF_EXPIRED) if expired and facts.holders == () else Proceed()
    if record.setback is not None:
        pause = _growing(RETRY_FIRST, 2, RETRY_LONGEST, record.setback.count - 1)
        if now.uptime - record.setback.at.uptime < pause:
            return Proceed()
    answer = _from_dirty(record, facts, policy, _idle_trigger(record))
    return answer if isinstance(answer, Scrub) else Proceed()


def _idle_trigger(record: Record) -> Trigger:
    if record.state is State.UNKNOWN:
        return Trigger.FIRST_LOOK
    if record.setback is not None:
        return Trigger.RETRY
    return Trigger.RELEASE if record.tenancy_began is not None else Trigger.FOREIGN_USE


def _announced(record: Record) -> bool:
    return record.grant is not None and record.grant.announced


def _just_released(record: Record, policy: Policy, now: Moment) -> bool:
    """A tenant has just left. What is still dirty after the allocate budget has somebody on it who does not leave."""
    return record.tenancy_began is not None and now.uptime - record.since.uptime <= policy.budgets.allocate


def _soon_done(record: Record, policy: Policy, now: Moment) -> bool:
    job = record.job
    if job is None or record.setback is not None or job.path is not Path.FAST:
        return False
    return now.uptime - job.started.uptime <= policy.budgets.allocate
