"""The second gate: may a container start on this device? The first gate may have been skipped by a restart.

A record, fresh facts, the policy, who wants to start and the time in; one small answer out. The rules of ``decide``
hold here as well, and one more:

Rule 4: whether a start is a new tenant's is derived, never guessed: a grant that nobody started on is a first start,
the same owner again is one pod, another owner is a new tenant whose grant was not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from policies.model import Mode, OnSick, Policy, Starts
from scrubber.core import answers, decide, grounds, remedy
from scrubber.core import events as ev
from scrubber.core.model import Ailment, Facts, Moment, Owner, Record, State, Trigger
from scrubber.ground.errors import Reason

LEFT_BEHIND = "a container of the pod died and left processes behind"
CROWDED = "somebody else's container was on it"
EACH_CONTAINER = "another container of the pod is about to start, and policy wants each on a clean device"


def starting_pod(owners: Mapping[str, frozenset[str]]) -> str | answers.Refuse:
    """The one pod that all of these devices are written down for. None, or more than one, is a no."""
    for device, pods in owners.items():
        if not pods:
            why = f"cannot start on {device}: the kubelet has not written down whose it is"
            return answers.Refuse(Reason.OWNER_UNKNOWN, why)
        if len(pods) > 1:
            why = f"cannot start on {device}: the kubelet has given it to more than one pod"
            return answers.Refuse(Reason.OWNER_AMBIGUOUS, why)
    everybody = frozenset().union(*owners.values())
    if len(everybody) == 1:
        return next(iter(everybody))
    return answers.Refuse(Reason.OWNER_AMBIGUOUS, "cannot start: the devices asked for belong to different pods")


def start(record: Record, facts: Facts, policy: Policy, owner: str, now: Moment) -> answers.StartAnswer:
    """May a container of this owner start on it?"""
    answer = _start(record, facts, policy, owner, now)
    in_tenancy = record.state in (State.GRANTED, State.IN_USE)
    unproven = isinstance(answer, answers.Refuse) and not facts.domain_resetting  # nobody is sent into a reset
    if policy.mode is Mode.OBSERVE and in_tenancy and unproven:
        return _once_more(record, facts, now) if _owned_by(record, owner) else _admit(facts, owner, now)
    return answer


def _start(record: Record, facts: Facts, policy: Policy, owner: str, now: Moment) -> answers.StartAnswer:
    stale = grounds.distrust(record, facts)
    if stale is not None:
        return answers.Note(stale)
    match record.state:
        case State.QUARANTINED:
            return answers.Refuse(Reason.QUARANTINED, f"cannot start on {record.device.uuid}: it is quarantined")
        case State.SCRUBBING:
            return _as_start(decide.under_way(record))
        case State.CLEAN | State.DIRTY | State.UNKNOWN:
            # No grant was seen: a reboot, the service was away, or the gate is here. It must pass the first gate now.
            return _as_start(decide.acquire(record, facts, policy, now))
        case State.GRANTED:
            return _start_granted(record, facts, policy, owner, now)
        case State.IN_USE if _owned_by(record, owner):
            return _start_again(record, facts, policy, owner, now)
        case State.IN_USE:
            return _start_exposed(record, facts, owner, now)


def _start_granted(record: Record, facts: Facts, policy: Policy, owner: str, now: Moment) -> answers.StartAnswer:
    """The first start of a grant."""
    # Processes on it before its first start: the kubelet was restarted and this is that very tenant, or somebody else
    # took it. Only the owner's own container may be there; any other's visit is recorded, for it may leave unseen.
    visit = grounds.visit(record, facts, now)
    if visit is not None and any(holder.container != owner for holder in facts.holders or ()):
        return answers.Note(visit)
    if record.grant is not None and not record.grant.announced:
        return _as_start(decide.busy(record))  # it was handed to somebody who never says that he starts
    if facts.domain_resetting:
        return answers.Refuse(Reason.NOT_READY, f"cannot start on {record.device.uuid}: it is being reset")
    if record.ailment is not None:
        return _sick(record)
    if facts.holders is None:
        return _as_start(decide.unproven(record))
    if (
        policy.mode is Mode.ENFORCE
        and not facts.holders
        and not grounds.proof_stands(record.receipt, facts, policy, now)
    ):
        return answers.Note(ev.Released("its proof ended before it was started on"))
    if policy.model is Starts.PER_CONTAINER and _may_have_run(record, facts):
        return _as_start(decide.busy(record)) if facts.holders else answers.Note(ev.Released(EACH_CONTAINER))
    return _admit(facts, owner, now)


def _start_again(record: Record, facts: Facts, policy: Policy, owner: str, now: Moment) -> answers.StartAnswer:
    """A restart, or another container of the same pod: policy ``model`` says what it means."""
    if facts.holders is None:
        return _as_start(decide.unproven(record))
    crowd = grounds.crowd(record, facts)
    if crowd is not None:
        return answers.Note(crowd)
    if any(holder.container not in (owner, None) for holder in facts.holders):
        return _as_start(decide.busy(record))
    if record.ailment is not None and _bars(record.ailment, policy):
        return _sick(record)
    crowded = record.owner is not None and record.owner.crowded
    if policy.model is Starts.PER_POD and not crowded:
        return _once_more(record, facts, now)
    siblings = any(holder.container == owner for holder in facts.holders)
    leftovers = any(holder.container is None for holder in facts.holders)
    if policy.model is Starts.PER_CONTAINER_CACHED and not leftovers and not crowded:
        return _once_more(record, facts, now)
    if siblings or not grounds.clearable(record, facts, policy):
        return _as_start(decide.busy(record))
    return answers.Note(ev.Released(CROWDED if crowded else LEFT_BEHIND if leftovers else EACH_CONTAINER))


def _once_more(record: Record, facts: Facts, now: Moment) -> answers.Proceed | answers.Admit:
    """Yes. Where nothing of the pod runs just now, its absence must not be taken for its end before it comes.

    Who was only met on it so far is let start now.
    """
    owner = record.owner
    if owner is None:
        return answers.Proceed()
    if facts.owner_alive is not True and facts.starting_pod_alive is not True:
        return answers.Admit(ev.PutInUse(replace(owner, since=now, seen=False, unannounced=False)))
    return answers.Admit(ev.PutInUse(replace(owner, unannounced=False))) if owner.unannounced else answers.Proceed()


def _start_exposed(record: Record, facts: Facts, owner: str, now: Moment) -> answers.StartAnswer:
    """Another owner, or the first to be named: a new tenant, unless all who are on it are this one's."""
    if facts.holders is None:
        return _as_start(decide.unproven(record))
    nameless = record.owner is not None and record.owner.container is None
    if nameless and facts.holders and all(holder.container == owner for holder in facts.holders):
        return _admit(facts, owner, now)
    used = decide.in_use(record, facts, now)
    if used is not None:
        return _as_start(used)
    return answers.Note(ev.Released("another owner is about to start and its last user is gone"))


def _may_have_run(record: Record, facts: Facts) -> bool:
    """After a restart of the kubelet, and until the plugin is back, containers start without asking."""
    return bool(facts.holders) or record.grant is None or record.grant.epoch != facts.epoch


def _owned_by(record: Record, owner: str) -> bool:
    return record.owner is not None and record.owner.container == owner


def _admit(facts: Facts, owner: str, now: Moment) -> answers.Admit:
    """Seen at once where the pod is there before its containers are: then its absence later means that it has gone."""
    return answers.Admit(ev.PutInUse(Owner(owner, now, seen=facts.starting_pod_alive is True)))


def _bars(ailment: Ailment, policy: Policy) -> bool:
    """The kubelet starts a crashed container again on whatever device it had: only a start that is refused stops it."""
    return policy.restart_on_sick is OnSick.REFUSE and remedy.of(ailment).doubtful


def _sick(record: Record) -> answers.Refuse:
    return answers.Refuse(Reason.SICK, f"cannot start on {record.device.uuid}: it is unhealthy")


def refused(answer: answers.Wait | answers.Refuse) -> answers.Refuse:
    """What keeps a device from being handed out keeps a container from starting on it."""
    return answers.Refuse(answer.reason, answer.message.replace("hand out", "start on"))


def _as_start(answer: answers.AcquireAnswer) -> answers.StartAnswer:
    """At a start there is no time to wait: the kubelet asks again by itself."""
    match answer:
        case answers.Wait() | answers.Refuse():
            return refused(answer)
        case answers.Scrub(path, Trigger.ACQUIRE):
            return answers.Scrub(path, Trigger.START)
        case answers.Defer():
            raise AssertionError  # only who announces a start is deferred to it
        case _:
            return answer
