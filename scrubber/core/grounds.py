"""What decisions stand on: is a proof still one, may a process be ended, which path is due. Yes or no, no deeds."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace

from policies.model import Eviction, Mode, Policy, Route
from scrubber.core import events as ev
from scrubber.core import leftover, names
from scrubber.core.model import (
    AilmentKind,
    Facts,
    Holder,
    Moment,
    Owner,
    Path,
    Quarantine,
    Receipt,
    Record,
    Setback,
    State,
    Step,
    Trigger,
    Vitals,
)
from scrubber.ground import process_names

STARTS_WITHIN = 10.0  # seconds from a permitted start until its container can be seen; creating one takes a few
OWN_PAUSE = 0.25  # of the time between two tests: by so much the pauses of two devices may differ
LEFT = frozenset({AilmentKind.REPLACED, AilmentKind.RELAID})  # as somebody wanted it, so that nobody waits for it
GONE = LEFT | {AilmentKind.LOST}  # nobody is on what is not there
# Says nothing of the device: to come back from it is no flapping.
BLAMELESS = frozenset({AilmentKind.STUCK_PROCESS, AilmentKind.RELAID})
CUT_FIRST = 60.0  # seconds until a probation that was cut off, by a crash or a reboot, is tried again ...
CUT_LONGEST = 3600.0  # ... doubling up to this: the trial itself may be what brings the node down


def growing(first: float, factor: float, longest: float, times: int) -> float:
    """A pause that grew so many times. Multiplied step by step: a power overflows after some weeks of tries."""
    pause = first
    for _ in range(times):
        pause = min(pause * factor, longest)
    return pause


def pause_after_cut(quarantine: Quarantine) -> float:
    """How long a device rests after its probation was cut off."""
    return growing(CUT_FIRST, 2, CUT_LONGEST, quarantine.probes)


def about_to_start(owner: Owner | None, now: Moment) -> bool:
    """A container was told that it may start and has not been seen yet: it may come any moment."""
    return owner is not None and not owner.seen and now.uptime - owner.since.uptime < STARTS_WITHIN


def quick(record: Record, policy: Policy) -> bool:
    """Whether its fast path usually ends within the time that whoever hands it out may wait; unless seen, it does."""
    return (
        not record.fast_seconds or sorted(record.fast_seconds)[len(record.fast_seconds) // 2] <= policy.budgets.allocate
    )


def siblings(record: Record, records: Iterable[Record]) -> list[Record]:
    """The other devices that a reset of this one takes down; one that is not there any more has nobody on it."""
    domain = record.device.reset_domain
    if domain is None:
        return []
    others = (it for it in records if it.device.reset_domain == domain and it.device.uuid != record.device.uuid)
    return [it for it in others if it.quarantine is None or it.quarantine.ailment.kind not in GONE]


def successor(record: Record, records: Iterable[Record]) -> str | None:
    """The GPU that sits where this one, which is out, sat; a slice has no place of its own."""
    place, out = record.device.pci_address, record.quarantine
    if out is None or place is None or record.device.parent is not None:
        return None
    there = (it for it in records if it.device.pci_address == place and it.device.parent is None)
    return next((it.device.uuid for it in there if it.quarantine is None), None)


def has_left(record: Record) -> bool:
    """It was taken away, and is not missed; whether it is back by now its vitals say.

    A GPU that waits for a person does so in another layout as well: that is no repair.
    """
    out = record.quarantine
    if out is None or out.ailment.kind not in LEFT:
        return False
    waits = out.next_probe is None and record.device.parent is None
    return out.ailment.kind is AilmentKind.REPLACED or not waits


def met_anew(record: Record) -> bool:
    """Nobody has looked at what became of it: it is as if it had never been seen."""
    relaid = record.quarantine is not None and record.quarantine.ailment.kind is AilmentKind.RELAID
    return relaid or record.state is State.UNKNOWN


def relaid(vitals: Vitals, parent: Vitals | None) -> Vitals:
    """Those of a slice by those of its GPU: it was laid out anew only if that is there, and says so itself."""
    if not vitals.lost or parent is None or parent.unresponsive or parent.partial or parent.reset_required:
        return vitals
    return replace(vitals, relaid=parent.relaid or not parent.lost)


def resetting(record: Record, records: Iterable[Record]) -> bool:
    """A sibling is being reset, or is about to be."""
    return any(it.job is not None and it.job.step is Step.RESET for it in siblings(record, records))


def spare(record: Record, records: Collection[Record]) -> int:
    """How many others are clean and left alone while this one is tested, which takes its reset domain with it.

    Less than none while another one is tested, or where that would disturb anybody.
    """
    near = {it.device.uuid: it for it in siblings(record, records)}
    tested = any(it.job is not None and it.job.trigger is Trigger.BURN_IN for it in records)
    if tested or any(it.state is not State.CLEAN for it in near.values()):
        return -1
    return sum(
        it.state is State.CLEAN and it.device.resource == record.device.resource
        for it in records
        if it.device.uuid not in {record.device.uuid, *near}
    )


def burn_in_due(record: Record, records: Collection[Record], policy: Policy, now: Moment) -> bool:
    """Whether an idle device is to be tested. Each has a pause of its own length, so that no fleet tests in step."""
    rules = policy.periodic
    if not rules.every or policy.mode is Mode.OBSERVE or record.state is not State.CLEAN:
        return False
    if spare(record, records) < rules.keep_free or path_for(record, policy) is Path.SLOW:
        return False  # or each tenant comes after a test as it is
    # What a clock told that was put back since tells nothing.
    known = [wall for wall in (record.tested, record.burn_in_begun) if wall is not None and wall <= now.wall]
    last = max(known, default=record.since.wall)
    own = int(hashlib.sha256(record.device.uuid.encode()).hexdigest()[:4], 16) / 2**16
    return not 0 <= now.wall - last < rules.every * (1 + OWN_PAUSE * own)


def yields(record: Record) -> bool:
    """Whether its job gives way to whoever asks for the device: a test that nobody needs now, but not its reset."""
    job = record.job
    if job is None or record.quarantine is not None or job.step is Step.RESET:
        return False
    return job.trigger is Trigger.BURN_IN


def sighting(record: Record, facts: Facts) -> ev.PutInUse | None:
    """The owner is seen to run for the first time: from now on its absence means that it has gone."""
    if record.owner is None or record.owner.seen or facts.owner_alive is not True:
        return None
    return ev.PutInUse(replace(record.owner, seen=True))


def visit(record: Record, facts: Facts, now: Moment) -> ev.PutInUse | None:
    """Somebody is on a device on which nobody was let start, or a user has got a name: whoever starts next is not it.

    To be recorded as soon as it is seen: a visitor that has left by the next look would be forgotten.
    """
    owner, user = record.owner, user_of(facts.holders or ())
    if not facts.holders or (owner is not None and (owner.container is not None or user is None)):
        return None
    return ev.PutInUse(Owner(user, now, seen=user is not None, unannounced=True))


def passed_by(record: Record, facts: Facts) -> bool:
    """Who was met on it, such as a monitor, has let go of it, and cannot be who it was granted to.

    In that life of the kubelet nobody comes to an announced grant without asking for a start; and nobody had it when it
    was granted, for it was proven clean. A ``unannounced`` of another grant, or of none, may be a tenant of whom nobody
    here has heard: he keeps it while he lives. So does who is in no pod, of whom the kubelet knows nothing.
    """
    grant, owner, given = record.grant, record.owner, facts.assigned_pods
    if grant is None or owner is None or owner.container is None or not owner.unannounced or facts.holders != ():
        return False
    proven = grant.announced and grant.receipt is not None and grant.epoch == facts.epoch
    return proven and names.is_pod(owner.container) and given is not None and owner.container not in given


def doubtful(owner: Owner | None, facts: Facts) -> bool:
    """Only the kubelet's checkpoint could show that nobody will come, or that who is there has no business there."""
    if owner is None or owner.container is None:
        return False
    return owner.unannounced or not owner.seen or hanging(facts)


def hanging(facts: Facts) -> bool:
    """Somebody is on it, and nobody who does not hang in the kernel, where no signal reaches him."""
    return bool(facts.holders) and all(holder.state == "D" for holder in facts.holders or ())


def rightful(record: Record, facts: Facts, now: Moment) -> ev.PutInUse | None:
    """Somebody who was met on it is who the kubelet has given it to: its owner from now on, also while off it.

    To be recorded as soon as it is known: the kubelet forgets a pod that was deleted by force and still runs.
    """
    owner, given = record.owner, facts.assigned_pods or frozenset()
    if owner is None or not owner.unannounced or owner.container is None:
        return None
    if owner.container in given:
        return ev.PutInUse(replace(owner, unannounced=False))
    here = sorted(holder.container for holder in facts.holders or () if holder.container in given)
    return ev.PutInUse(Owner(here[0], now, seen=True, crowded=True)) if here else None


def crowd(record: Record, facts: Facts) -> ev.PutInUse | None:
    """Somebody else's container is on the owner's device: what it leaves there must not outlive it unseen."""
    owner = record.owner
    if owner is None or owner.container is None or owner.crowded:
        return None
    if all(holder.container in (owner.container, None) for holder in facts.holders or ()):
        return None
    return ev.PutInUse(replace(owner, crowded=True))


def leak(facts: Facts) -> int:
    """Bytes of memory that no visible process answers for."""
    return 0 if facts.vitals is None else facts.vitals.leaked_bytes


def soiled(facts: Facts) -> ev.Soiled | None:
    """What ends the proof of a clean device: somebody on it, or memory that somebody unseen holds."""
    if facts.holders:
        return ev.Soiled("it was used without a grant", facts.holders)
    return ev.Soiled(f"{leak(facts)} bytes are held by no visible process") if leak(facts) else None


def distrust(record: Record, facts: Facts) -> ev.Distrusted | None:
    """A proof is worth nothing after a reboot or under another driver instance."""
    if record.incarnation == facts.incarnation or record.state is State.SCRUBBING:
        return None
    rebooted = record.incarnation.boot_id != facts.incarnation.boot_id
    return ev.Distrusted("the node was rebooted" if rebooted else "the driver was loaded anew", facts.incarnation)


def terminable(holder: Holder, record: Record, policy: Policy) -> bool:
    """Whether policy lets us end this process: never one of a live container."""
    ends = Eviction.TERMINATE
    leftovers, foreign = policy.evict.leftovers is ends, policy.evict.foreign is ends
    return leftover.may_end(holder, leftover.span(record), leftovers=leftovers, foreign=foreign)


def setback(record: Record, why: str, at: Moment) -> Setback:
    """What the job that ends now leaves behind. Who cannot be ended is known from one scrub to the next."""
    before = record.setback
    count = before.count + 1 if before is not None else 1
    stuck = tuple(it for result in record.job.results for it in result.findings.stuck) if record.job else ()
    if not stuck:
        return Setback(why, at, count)
    known = {(it.pid, it.started) for it in before.stuck} if before is not None else set()
    same = any((it.pid, it.started) in known for it in stuck)
    return Setback(why, at, count, stuck, before.stuck_since if before is not None and same else at)


def given_up(record: Record, policy: Policy, now: Moment) -> bool:
    """Whether those who cannot be ended were waited for as long as policy says."""
    since = setback(record, "", now).stuck_since
    return since is not None and now.uptime - since.uptime >= policy.evict.give_up


def proof_stands(receipt: Receipt | None, facts: Facts, policy: Policy, now: Moment) -> bool:
    """Whether a receipt still proves what the policy in force asks for."""
    if receipt is None or receipt.policy_digest != policy.proof_digest:
        return False
    if receipt.patterns != policy.clear.passes.patterns:  # it was written by a version that did not say
        return False
    # A proof says that nobody has used the device since. While the service was away, nobody watched.
    if receipt.finished.uptime < facts.observed_since and not policy.proof.survives_restart:
        return False
    return now.uptime - receipt.finished.uptime <= policy.proof.max_age


def clearable(record: Record, facts: Facts, policy: Policy) -> bool:
    """Nobody is on it but processes that a scrub may end."""
    return facts.holders is not None and all(terminable(holder, record, policy) for holder in facts.holders)


def user_of(holders: tuple[Holder, ...]) -> str | None:
    """The live container among those on the device, if there is one."""
    return next((holder.container for holder in holders if holder.container is not None), None)


def path_for(record: Record, policy: Policy) -> Path:
    """Which path the device's next scrub takes."""
    route = policy.paths.first_look if met_anew(record) else policy.paths.new_tenant
    return Path.SLOW if route is Route.SLOW or record.due_path is Path.SLOW else Path.FAST


def holder_names(holders: tuple[Holder, ...]) -> str:
    """Who they are, for operators."""
    return ", ".join(process_names.process(it.command, it.pid, it.container or "no container") for it in holders)
