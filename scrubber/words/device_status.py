"""The views of a device, made from its record: receipt, job, quarantine, owner, advice."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from ground import process_names
from ground.quantities import quantity
from policies.policy_model import Policy
from policies.values import FenceMode
from scrub_api import views
from scrubber.core import absence, ailments, answers, device_names, fencing, next_scrub, ownership, verdict
from scrubber.core.ailment_traits import AILMENTS, Course, Lasts
from scrubber.core.model import (
    NO_CONTAINER,
    AilmentKind,
    Facts,
    Holder,
    Job,
    Moment,
    Quarantine,
    Receipt,
    ScrubPath,
    Sign,
    State,
    Step,
    Vitals,
    holder_names,
    is_contained,
    place_words,
)
from scrubber.core.record import Record
from scrubber.core.repeated_uses import RepeatedUse, UnauthorisedUse
from scrubber.words import event_text

AGAIN = "Autoclave tries the scrub again"
UNKNOWN = "the processes on it are not known"
NO_PODS: Mapping[str, str] = MappingProxyType({})
NO_UNITS: Mapping[Holder, str] = MappingProxyType({})
SAVE = "first save what `autoclave ledger export` prints"
SHOWN = 900.0  # seconds for which a device that was taken away is still listed, so that people see what happened
MOST = 3  # programs, places or namespaces that an advice names: it must stay short
_PLACES = {NO_CONTAINER: "a process in no container", "": "a process that had ended before it could be named"}


def receipt_view(receipt: Receipt) -> views.ReceiptView:
    """A receipt as people see it."""
    return views.ReceiptView(
        id=receipt.id,
        path=receipt.path.value,
        finished=receipt.finished.wall,
        policy=receipt.policy,
        policy_digest=receipt.policy_digest,
        digest=receipt.digest,
        previous=receipt.previous or "",
        driver=receipt.incarnation.driver,
        boot_id=receipt.incarnation.boot_id,
        steps=tuple(views.StepTime(step.value, seconds) for step, seconds in receipt.steps),
        last_owner=receipt.last_owner,
        signed_by=receipt.signed_by,
        **verdict.measured(receipt),
    )


@dataclass(frozen=True, slots=True)
class Namespaces:
    """What an advice about the pods of a namespace must know."""

    exempt: Collection[str] = ()  # the policy exempts these
    of_tenants: Collection[str] = ()  # pods in these were given GPUs: no advice exempts such a namespace


NO_NAMESPACES = Namespaces()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job has come with its present step."""

    done: int = 0  # bytes
    total: int = 0
    queue_place: int | None = None  # while it waits for a slot
    step: Step | None = None
    runs: tuple[float, float] | None = None  # since which uptime the step runs, and for how many seconds at most
    last: float | None = None  # the uptime of the last progress; None if the step counts no bytes


NO_PROGRESS = Progress()


def job_status(job: Job, progress: Progress, usual: float | None, now: Moment) -> views.JobStatus:
    """A job as people see it. ``usual``: how long the fast path takes mostly."""
    step = progress.step.value if progress.step is not None else ""
    ready = None
    if usual is not None and job.path is ScrubPath.FAST and progress.queue_place is None:
        left = usual - (now.uptime - job.started.uptime)
        ready = left if left > 0 else None  # it takes longer than usual, so nothing is known
    runs, limit = (None, None) if progress.runs is None else (max(0.0, now.uptime - progress.runs[0]), progress.runs[1])
    still = None if progress.last is None else max(0.0, now.uptime - progress.last)
    about = job.id, job.path.value, job.trigger.value, step, job.started.wall, progress.done, progress.total
    return views.JobStatus(*about, progress.queue_place, ready, runs, limit, still)


def quarantine_status(quarantine: Quarantine, path: ScrubPath | None, now: Moment) -> views.QuarantineStatus:
    """A quarantine as people see it. ``path`` is the path of its next probation; None if the policy forbids it."""
    due = None if path is None else quarantine.next_probe
    return views.QuarantineStatus(
        reason=quarantine.ailment.kind.value,
        detail=quarantine.ailment.detail,
        since=quarantine.since.wall,
        by=quarantine.by,
        probes=quarantine.probes,
        sticky=due is None,
        next_probe_seconds=None if due is None else max(0.0, due - now.uptime),
        next_path="" if path is None or due is None else path.value,
        last_try=quarantine.last_try,
    )


def device_status(
    record: Record,
    offer: answers.Offer,
    rule: str,
    policy: Policy,
    now: Moment,
    progress: Progress = NO_PROGRESS,
) -> views.DeviceStatus:
    """A device as people see it, under the policy of this rule."""
    device, quarantine, job = record.device, record.health.quarantine, record.scrubs.job
    path = None if next_scrub.reset_forbidden(record, policy) else next_scrub.next_path(record, policy)
    return views.DeviceStatus(
        device=device.uuid,
        index=device.index,
        model=device.model,
        state=record.state.value,
        since=record.since.wall,
        healthy=offer.healthy,
        why=offer.why,
        memory_bytes=device.memory_bytes,
        numa_node=device.numa_node,
        pci_address=device.pci_address or "",
        mig=device.mig,
        receipt=receipt_view(record.scrubs.receipt) if record.scrubs.receipt else None,
        owner=_owner(record),
        pod=record.tenancy.owner.called if record.tenancy.owner else "",
        job=job_status(job, progress, record.scrubs.usual_seconds, now) if job else None,
        quarantine=quarantine_status(quarantine, path, now) if quarantine else None,
        policy_rule=rule,
        policy_mode=policy.mode.value,
        setback=record.scrubs.setback.detail if record.scrubs.setback else "",
        slice=device.slice,
        driver=record.incarnation.driver,
        compute=device.compute or "",
        reset_domain=device.reset_domain or "",
        ecc=device.ecc,
        resource=device.resource,
    )


def _owner(record: Record) -> str:
    """Who it was acquired for, or else the pod or container that has it."""
    if acquired := record.tenancy.acquired_by:
        return acquired
    return (record.tenancy.owner.container or "unknown") if record.tenancy.owner else ""


def may_have_pod(record: Record) -> bool:
    """Whether there may be a pod to name."""
    return record.tenancy.owner is not None or record.state is State.GRANTED


def pod(record: Record, assigned: Mapping[str, Collection[str]], names: Mapping[str, str]) -> str:
    """The pod of a device as people call it; empty where it is not known.

    ``assigned``: the pods in the kubelet's checkpoint, with their containers, by UID. ``names``: NAMESPACE/NAME by UID.
    If the record has an owner, only that pod is named. For a granted device without an owner, all pods of the
    checkpoint are named, but none for a job: there the checkpoint may name the pod in which the jobs of Slurm run.
    """
    if record.tenancy.owner is not None:
        uid = record.tenancy.owner.container or ""
        if record.tenancy.owner.name:
            return record.tenancy.owner.name
        return _called(uid, assigned, names) if uid in names else record.tenancy.owner.pod
    if record.state is State.GRANTED and not (record.tenancy.grant and record.tenancy.grant.owner):
        return ", ".join(_called(uid, assigned, names) for uid in sorted(assigned))
    return ""


def _called(uid: str, assigned: Mapping[str, Collection[str]], names: Mapping[str, str]) -> str:
    if uid not in names:
        return uid
    return ", ".join(f"{names[uid]}/{container}" for container in sorted(assigned.get(uid, ()))) or names[uid]


def is_past(record: Record, vitals: Vitals | None, now: Moment) -> bool:
    """Whether lists leave the device out: it was taken away on purpose a while ago and has not returned."""
    if record.health.quarantine is None or not absence.taken_away(record) or (vitals is not None and not vitals.lost):
        return False
    return not 0 <= now.wall - record.health.quarantine.since.wall < SHOWN


def in_the_way(record: Record, facts: Facts, now: Moment, *, as_root: bool) -> tuple[str, ...]:
    """Why a device cannot be taken back although no process on it can be named, and what to do; empty if it can be.

    ``as_root``: the service is root, so it may inspect every process.
    """
    if facts.holders is None:
        root = () if as_root else ("let the service run as root",)
        return facts.shortage or facts.held_up or UNKNOWN, *root, "`autoclave doctor` says what it lacks"
    if record.tenancy.container is not None and ownership.about_to_start(record.tenancy.owner, now):
        within = f"{ownership.STARTS_WITHIN:g} s"
        return (
            f"the start of its container was admitted less than {within} ago, and the container is not there yet",
            f"wait {within}",
        )
    return ()


def advice(  # noqa: PLR0913 - all that is known
    record: Record,
    blocked: str = "",
    *,
    reset_forbidden: bool = False,
    holders: Sequence[Holder] = (),
    foreign: tuple[str, ...] = (),
    others: Sequence[Holder] = (),
    unseen: tuple[str, ...] = (),
    pods: Mapping[str, str] = NO_PODS,
    units: Mapping[Holder, str] = NO_UNITS,
    owning_pod: str = "",
    signs: Iterable[Sign] = (),
    waits: str = "",
) -> tuple[str, ...]:
    """What a person should do now, each a sentence with one command at most.

    Empty when there is nothing to do. ``blocked`` says what blocks the device's scrub. ``holders``: the processes that
    have the device open; ``others``: those of them to whom it was not given; ``foreign``: what ``on_others`` says of
    these. ``unseen`` says what is in the way without a process that can be named. ``pods``: NAMESPACE/NAME of pods, by
    UID. ``units``: the unit of systemd that a process belongs to. ``owning_pod``: ``DeviceStatus.pod``. ``signs`` are
    those that the device reports. ``waits``: what ``who_waits`` says.
    """
    gpu = device_names.argument(record)
    owners = [it for it in holders if it not in others and may_be_of_owner(record, it)]
    frees = (waits, *(unseen or ends(owners, pods, units))) if waits else ()
    first = unseen or tuple(ends(holders, pods, units))
    if record.scrubs.job is not None and (record.health.quarantine is not None or record.scrubs.setback is not None):
        work = "probation" if record.health.quarantine is not None else "scrub"
        return (f"wait for the end of the {work}: `autoclave status {gpu} --watch` shows its progress",)
    if record.health.quarantine is not None:
        asked = ailments.remedy(record.health.quarantine.ailment)
        person = asked.course is Course.PERSON
        what = asked.advice
        if reset_forbidden and not person:
            what = (f"{next_scrub.RESET_FORBIDDEN}: {ailments.RESET_BY_PERSON}",)
        elif record.health.quarantine.next_probe is None and not person:
            what = ailments.BY_PERSON
        endable = first if AILMENTS[record.health.quarantine.ailment.kind].lasts is not Lasts.HELD else ()
        untested = ("no test can pass while a process has the GPU open", *endable) if endable else ()
        return (*untested, *_about(gpu, what))
    if record.health.ailment is not None and record.health.ailment.kind is AilmentKind.OPERATOR:
        return (*foreign, "wait for the end of its owner", f"`autoclave reinstate {gpu}` withdraws the quarantine")
    if record.health.ailment is not None:
        then, *more = _about(gpu, ailments.remedy(record.health.ailment).advice)
        return (*foreign, *(frees or ["let its owner end first"]), f"then {then}", *more)
    if blocked and first:
        return (*foreign, *(unseen or ends([it for it in holders if it not in others], pods, units)), AGAIN)
    if blocked:
        return (f"remove what blocks the scrub: {blocked}", AGAIN)
    if record.scrubs.setback is not None:
        stuck = record.scrubs.stuck
        hung = [*ends([it for it in stuck.holders if it.state == "D"], pods, units)] if stuck is not None else []
        return (*hung, AGAIN) if hung else (f"wait: {AGAIN}",)
    served = "the GPU stays in service, as the policy says (quarantine.signs)"
    begins = foreign
    for sign in signs:
        begin, *more = _about(gpu, AILMENTS[sign.kind].action)
        begins += (f"{sign.kind.value}: {begin}", *more, served)
    who = shlex.quote(record.tenancy.acquired_by) if record.tenancy.acquired_by else ""
    if who or record.tenancy.until_release:
        left_behind = [it for it in holders if it not in others and not may_be_of_owner(record, it)]
        first = unseen or tuple(ends(left_behind, pods, units))
        owner = f"its owner {who}".rstrip()
        release = _release(gpu, who, owning_pod)
        if first:  # until then the release would be refused
            left = () if unseen else (f"if {owner} has ended, end the processes that it has left behind",)
            return (*begins, *left, *first, f"then give it back: {release}")
        return (*begins, f"if {owner} has ended: {release}")
    if frees or unseen:
        return (*begins, *(frees or unseen))
    if record.tenancy.owner is not None and not record.tenancy.owner.seen and not holders:  # its end cannot be noticed
        name, still = owning_pod or "the owner", tuple[str, ...]()
        if "/" in owning_pod:
            namespace, pod, *_ = owning_pod.partition(",")[0].split("/")
            name = f"the pod {namespace}/{pod}"
            still = (f"if {name} is still there, delete it: `kubectl -n {namespace} delete pod {pod}`",)
        return (
            *begins, "no process of its owner was seen", *still,
            f"if {name} has ended: {_release(gpu, who, owning_pod)}",
        )  # fmt: skip
    return begins


def _release(gpu: str, who: str, owning_pod: str) -> str:
    """The command that takes a device back. That of a pod takes a flag: a pod is not given back by mistake."""
    return f"`autoclave release {gpu}{f' --owner {who}' if who else ' --force' if owning_pod else ''}`"


def who_waits(record: Record, given: Collection[str], pods: Mapping[str, str], *, withheld: bool) -> str:
    """Which pod waits until the pod that owns a device ends; empty if none does.

    ``given``: the pods in the kubelet's checkpoint, by UID. ``pods``: NAMESPACE/NAME by UID. ``withheld``: a request
    for the device was refused lately.
    """
    owner = record.tenancy.owner
    if owner is None or owner.unannounced or record.tenancy.until_release:
        return ""
    name = owner.called or pods.get(owner.container or "") or "its owner"
    if is_taken(record, given):
        to = ", ".join(pods.get(uid, f"pod {uid}") for uid in sorted(given))
        return f"the kubelet has given the GPU to {to}, which cannot start before {name} has left it"
    return f"another pod has asked for the GPU in vain: unless {name} is still needed, end it" if withheld else ""


def is_taken(record: Record, given: Collection[str]) -> bool:
    """Whether the kubelet has given the device to others: the pod that owns it has ended or was deleted."""
    owner = record.tenancy.owner
    return owner is not None and not owner.unannounced and bool(given) and owner.container not in given


class DeviceWas(Enum):
    """What a device was when a foreign program opened it."""

    GIVEN = "given"  # to somebody else
    NOT_SCRUBBED = "not scrubbed"  # since the last tenant
    IDLE = "idle"


_IF_IT_STAYS = "if the node needs it: add the path of its program to evict.bystanders, so that its uses end no proof"
_BREAK_IN = "if nobody knows it, treat it as a break-in"
_IF_UNKNOWN = {
    DeviceWas.GIVEN: _BREAK_IN,
    DeviceWas.NOT_SCRUBBED: f"no scrub has passed since the last tenant, so {_BREAK_IN}",
    DeviceWas.IDLE: "if nobody needs it, end it",
}


def device_was(record: Record, others: Sequence[Holder] = ()) -> DeviceWas:
    """What the device is for these foreign programs, of which one may be its unannounced owner."""
    owner = record.tenancy.owner
    is_idle = owner is None or (owner.unannounced and all(it.container == owner.container for it in others))
    if record.tenancy.grant is not None or not is_idle:
        return DeviceWas.GIVEN
    return DeviceWas.IDLE if record.tenancy.span is None else DeviceWas.NOT_SCRUBBED


def tenant(record: Record, pods: Mapping[str, str]) -> str:
    """Who may have data on a device that is handed out, as people call them; empty if that is nobody."""
    owner, acquired = record.tenancy.owner, record.tenancy.acquired_by
    if record.state is State.GRANTED:  # a pod that was not started has no data
        return acquired or ("its tenant" if record.tenancy.until_release else "")
    if record.state is not State.IN_USE:
        return ""
    container = (owner.container if owner is not None else None) or ""
    called = owner.called if owner is not None else ""
    return called or pods.get(container) or acquired or place_words(container) or "its tenant"


def on_others(
    record: Record,
    others: Sequence[Holder],
    pods: Mapping[str, str],
    units: Mapping[Holder, str],
    tenants: Mapping[str, str],
    namespaces: Namespaces = NO_NAMESPACES,
    *,
    kubelet: bool,
) -> Iterator[str]:
    """What to do about those who have a device open that was not given to them, as ``advice`` gives it.

    ``tenants``: the devices that pods and containers have, as commands name them, by ``Holder.container``.
    ``kubelet``: the node has one.
    """
    if not others:
        return
    gpu, tenancy = device_names.argument(record), record.tenancy
    owner = tenancy.owner.container if tenancy.owner is not None else None
    with_owner = owner is not None and owner in {it.container for it in others}
    of = "" if with_owner else tenant(record, pods)
    shown = [*{it.container or str(it.pid): it for it in reversed(others)}.values()][::-1][:MOST]  # one of each pod
    more = f" and {len(others) - len(shown)} more (all: `autoclave status {gpu} -o json`)"
    read = f": the data of {of} may have been read" if of else ""
    names, was = holder_names(tuple(shown), pods), device_was(record, others)
    names += more if len(others) > len(shown) else ""
    containers = [it.container for it in shown if it.container is not None]
    in_pods = dict.fromkeys(pods[it] for it in containers if it in pods)
    if was is not DeviceWas.GIVEN:
        yield f"the idle GPU was opened by {names}"
    elif with_owner and tenancy.grant is None:
        yield f"nobody was given the GPU that {names} have open: they may have read each other's data"
    else:
        yield f"the GPU was not given to {names}{read}"
    if was is not DeviceWas.IDLE:
        yield SAVE
        for pod in in_pods:
            namespace, _, name = pod.partition("/")
            yield f"save the specification of its pod: `kubectl -n {namespace} get pod {name} -o yaml`"
    yield from _if_monitors(in_pods, namespaces)
    of_node = [it for it in shown if it.container is None]
    if of_node:
        unit = next((units[it] for it in of_node if it in units), "")
        yield from _if_of_node(gpu, unit, kubelet=kubelet)
    for container in dict.fromkeys(it for it in containers if it in tenants):
        name = f"the pod {pods[container]}" if container in pods else place_words(container)
        yield f"{name} is also the tenant of GPU {tenants[container]}: if you end it, its work there ends, too"
    yield f"{_IF_UNKNOWN[was]}:" if was is DeviceWas.IDLE else f"{_IF_UNKNOWN[was]}, and end it:"
    yield from ends(shown, pods, units)


def may_be_of_owner(record: Record, holder: Holder) -> bool:
    """Whether a process may be one of the owner, as far as it is known whom the device was given to.

    Of a device that is for one control group, the fence names all others, so the rest may be in that group.
    """
    match fencing.open_to(record):
        case fencing.Group():
            return True
        case fencing.Container(name):
            return holder.container == name
        case fencing.Pods(names):
            return holder.container in names
        case fencing.OpenTo():
            return holder.container is not None and holder.container == record.tenancy.container


def _about(gpu: str, sentences: Iterable[str]) -> Iterator[str]:
    return (sentence.format(gpu=gpu) for sentence in sentences)


def advice_if_stalled(job: views.JobStatus) -> Iterator[str]:
    """What to do about a step that makes no progress, as ``advice`` gives it; nothing if it does."""
    if not job.stalled:
        return
    driver = "read what the driver has reported: `journalctl -k`"
    left = (job.step_limit or 0.0) - (job.step_seconds or 0.0)
    if left > 0:
        yield f"{views.step_words(job.step)} makes no progress: wait, Autoclave ends it within {left:.0f} s"
        yield f"if it happens again, {driver}"
    else:
        yield f"{views.step_words(job.step)} makes no progress, and its process does not end"
        yield driver
        yield "if a driver call hangs, drain and reboot the node"


def keeps_out(  # noqa: PLR0913 - all that is known
    uses: Sequence[RepeatedUse],
    users: Mapping[Holder, str],
    pods: Mapping[str, str],
    gpu: str,
    node: str,
    *,
    asked: bool = False,
    units: Mapping[Holder, str] = NO_UNITS,
    namespaces: Namespaces = NO_NAMESPACES,
) -> Iterator[str]:
    """Who ends the proofs and scrubs of a device again and again, and what ends that, as ``advice`` gives it.

    ``users``: of the processes that still run. ``pods``: NAMESPACE/NAME by UID.
    ``gpu``: names the device in a command. ``node``: the device file, if known. ``asked``: the fence has seen who
    opened it.
    """

    def named(holder: Holder) -> str:
        where = pods.get(holder.container or "", holder.container or "no container")
        user = f"user {users[holder]}, " if holder in users else ""
        return process_names.describe(holder.command, holder.pid, user + where)

    find = ["look for what starts it, such as a timer"]
    if node:
        find = [f"let Linux record who opens it: `auditctl -w {node} -k autoclave`"]
        find += ["read the records a minute later: `ausearch -k autoclave -i`"]
    for each in uses[:MOST]:
        last, did = each.last, f"has ended {each.times} proofs or scrubs of the GPU recently"
        if last is None and asked:
            yield f"a process that leaves before it can be looked at {did}: the lines `asked` below name it"
        elif last is None:
            yield from (f"a process that leaves before it can be named {did}", *find)
        elif last in users or last.container in pods:
            of_pod = pods.get(last.container or "")
            yield from (f"{named(last)} {did}", *ends([last], pods, units))
            yield from _if_monitors([of_pod], namespaces) if of_pod else [_IF_IT_STAYS]
        else:
            yield from (f"{named(last)} {did}, and is not running now", *find)
    if len(uses) > MOST:
        rest = quantity(len(uses) - MOST, "other program")
        yield f"{rest} did so, too, and not more often: `autoclave history {gpu} --warnings` names all"


def after_use(  # noqa: PLR0913 - all that is known
    use: UnauthorisedUse | None, gpu: str, fence: str, mode: FenceMode, exempt: Collection[str] = (),
    namespaces: Namespaces = NO_NAMESPACES, was: DeviceWas = DeviceWas.GIVEN, *, kubelet: bool,
) -> Iterator[str]:  # fmt: skip
    """What to do about those who used a device that was not given to them, as ``advice`` gives it.

    ``gpu``: names the device in a command. ``fence``: what the fence does with others now, as ``DeviceStatus.fence``.
    ``mode``: what the policy asks of the fence. ``exempt``: the places that the policy exempts now. ``kubelet``: the
    node has one. ``was``: what the device was then.
    """
    if use is None:
        return
    during = f", at least once while {' and '.join(use.tenants)} had it" if use.tenants else ""
    at = f"{'noticed' if use.noticed else 'last tried'} at {event_text.time_of(use.last)}"  # perhaps tried in vain
    places = {place: pod for place, pod in use.places.items() if place not in exempt}
    if use.wiped or not places:
        since = "wiped since" if use.wiped else "before the policy exempted it"
        yield f"used without a grant{during}, {at}, {since}: see `autoclave history {gpu} --warnings`"
        return
    named = [_PLACES.get(place) or place_words(place, pod) for place, pod in places.items()]
    names = ", ".join(named[:MOST]) + (f" and {len(named) - MOST} more" if len(named) > MOST else "")
    used = f"the GPU was used by {names}, without a grant{during}"
    did = used if was is DeviceWas.GIVEN else f"the idle GPU was opened by {names}"
    yield f"{did}, {at}: see `autoclave history {gpu} --warnings`"
    contained = {place: pod for place, pod in places.items() if is_contained(place)}
    keeps_pods_off = fence in (FenceMode.HOLD.value, FenceMode.REFUSE.value)
    if contained and keeps_pods_off:
        yield f"the fence keeps pods off the GPU now (mode {fence})"
    elif contained and mode in (FenceMode.HOLD, FenceMode.REFUSE):
        yield f"the policy has `fence: {{mode: {mode.value}}}`, but the fence does not keep pods off the GPU now"
        yield "`autoclave doctor` says why not"
    elif contained:
        yield "`fence: {mode: hold}` in the policy keeps pods off"
    yield from _if_monitors(filter(None, contained.values()), namespaces)
    if places.keys() - contained:
        yield from _if_of_node(gpu, "", kubelet=kubelet)
        if mode is not FenceMode.REFUSE:
            yield "to keep programs of the node off, too: `fence: {mode: refuse}` in the policy"
    yield _IF_UNKNOWN[was] if was is DeviceWas.IDLE else f"{_IF_UNKNOWN[was]}: {SAVE}"


def _if_of_node(gpu: str, unit: str, *, kubelet: bool) -> Iterator[str]:
    """What lets a program of the node in. ``unit``: its unit of systemd, if it is known."""
    if kubelet:  # `acquire` would take the GPU from the kubelet, which does not know of it
        yield "if it is a person: they request a GPU through Kubernetes"
    else:
        yield f"if it is a person: they acquire the GPU first, with `autoclave acquire {gpu} --owner NAME`"
    of_chart = " (policy.exempt of the chart)" if kubelet else ""
    yield f"if it is a daemon that may open GPUs: add {unit or 'its unit'} to fence.exempt.units{of_chart}"
    yield "so that it costs no scrubs, and keeps no GPU out: add the path of its program to evict.bystanders"


def _if_monitors(pods: Iterable[str], namespaces: Namespaces) -> Iterator[str]:
    """What lets monitors in: the DaemonSet of one makes a new pod for each that is ended. Tenants are not let in."""
    of_others = dict.fromkeys(pod.partition("/")[0] for pod in pods)
    for each in [it for it in of_others if it not in namespaces.of_tenants][:MOST]:
        is_exempt = each in namespaces.exempt
        if not is_exempt:
            named = f"add {each} to evict.operator_namespaces (policy.operatorNamespaces of the chart)"
            yield f"if it is a monitor, and tenants cannot create pods there: {named}"
        also = "" if is_exempt else "also "
        yield f"unless that monitor is NVIDIA's, {also}add {each}:PATH to evict.bystanders, or it keeps the GPU out"


def kept_by_exempt(holders: Iterable[views.HolderView]) -> Iterator[str]:
    """What to do about programs that block a scrub, although the policy lets them open the device."""
    for holder in [it for it in holders if it.exempt][:MOST]:
        name = process_names.describe(holder.command, holder.pid)
        keeps = f"{name} may open the GPU, but counts as no bystander, and so keeps it from others"
        yield f"{keeps}: `autoclave fence plan` says what to add to evict.bystanders"


def ends(holders: Sequence[Holder], pods: Mapping[str, str], units: Mapping[Holder, str] = NO_UNITS) -> Iterator[str]:
    """How to end these processes.

    Lines for each pod and each unit of systemd, for each process that no signal ends, and for all others.
    """
    killed: list[Holder] = []
    named: set[str] = set()
    for holder in holders:
        pod = pods.get(holder.container or "")
        process = process_names.describe(holder.command, holder.pid)
        if holder.state == "D":
            yield f"no signal ends {process}, because it waits in the kernel: `cat /proc/{holder.pid}/stack`"
            yield "if it stays there, drain and reboot the node"
        elif unit := units.get(holder):  # systemd may start it again after a signal
            if unit not in named:
                named.add(unit)
                yield f"end {process} of {unit}: `systemctl stop {shlex.quote(unit)}`"
                yield f"that ends all of {unit}; to end the process alone: `kill {holder.pid}`"
        elif pod is None:
            killed.append(holder)
        elif pod not in named:
            named.add(pod)
            pids = " ".join(str(it.pid) for it in holders if it.container == holder.container and it.state != "D")
            yield f"end the pod of {process}: `kubectl -n {pod.partition('/')[0]} delete pod {pod.partition('/')[2]}`"
            yield f"if that pod is gone already: `kill -9 {pids}`"
    if killed:
        pids = " ".join(str(holder.pid) for holder in killed)
        names = ", ".join(process_names.describe(holder.command, holder.pid) for holder in killed)
        yield f"end {names}: `kill {pids}`"
        yield f"if that does not help: `kill -9 {pids}`"
