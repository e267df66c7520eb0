"""Status, history and explanations for people, and the list of devices for the plugin, as views of records."""

from __future__ import annotations

import asyncio
import math
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from ground import process_names
from ground.errors import joined
from policies.policy_model import OPERATOR_PROGRAMS, RUNTIME_UNITS, Policy, concessions
from policies.values import FenceMode
from scrub_api import views
from scrub_api.device_messages import ReportedDevice, ReportedDevices
from scrubber.core import answers, device_names, fencing, next_scrub, offering, repeated_uses
from scrubber.core.ailment_traits import AILMENTS
from scrubber.core.events import LedgerEntry
from scrubber.core.fencing import Container, Group, KeptOff, OpenTo, Pods
from scrubber.core.model import Holder, Moment, Opener, State, is_contained
from scrubber.core.observation import Purpose
from scrubber.core.open_attempts import added
from scrubber.core.record import Record
from scrubber.core.repeated_uses import UnauthorisedUse
from scrubber.devices.base import DeviceError
from scrubber.fence.guard import Guard
from scrubber.fence.live_openers import LiveOpener
from scrubber.node import bystanders, proc
from scrubber.node.bystanders import Bystander
from scrubber.node.clock import NO_KUBELET
from scrubber.node.pods import Tenants
from scrubber.service.context import ServiceContext
from scrubber.service.history import History
from scrubber.words import device_status, nvidia_advice
from scrubber.words.device_status import DeviceWas
from scrubber.workers.wire import Ready

LOOK = 3.0  # seconds that an explanation waits at most for the processes of a device
UNLISTED_FOR = 3600.0  # seconds for which a program that had a device open is reported


class StatusReporter:
    """Answers questions about devices, and has their history."""

    def __init__(
        self,
        context: ServiceContext,
        fixed: views.ServiceStatus,
        cupy: Callable[[], Ready] = Ready,
        elsewhere: Mapping[Bystander, float] = MappingProxyType({}),
    ) -> None:
        """``fixed``: the facts about the service that do not change while it runs.

        ``cupy`` returns the zygote's report about CuPy; ``elsewhere``: programs that a policy would have to name as
        bystanders, and when each last had a device open.
        """
        self._context = context
        self.history = History(context.ledger)
        self._cupy = cupy
        self._fixed = fixed
        self._elsewhere = elsewhere

    async def status(self, gpus: Sequence[str]) -> views.Status:
        """The named devices, or all ``listed`` ones, by index, with their pods."""
        uuids = [device_names.find(self._context.ledger.records, gpu) for gpu in gpus] or self.listed()
        about = self.about()  # first: a client waits for rows after ``ledger_rows``, and must miss none
        devices = await self._with_pods(uuids)
        return views.Status(tuple(sorted(devices, key=lambda device: (device.index, device.slice or 0))), about)

    def listed(self) -> list[str]:
        """All devices except those that were taken away on purpose some time ago."""
        vitals, now = self._context.seen.vitals, self._context.now()
        records = self._context.ledger.records.items()
        return [uuid for uuid, record in records if not device_status.is_past(record, vitals.get(uuid), now)]

    def device(self, uuid: str) -> views.DeviceStatus:
        """The status of one device, without its pod."""
        record = self._context.ledger.records[uuid]
        running = self._context.jobs.of(uuid)
        place = self._context.jobs.slots.place(uuid)
        progress = device_status.Progress(queue_place=place)
        if running is not None:
            at = running.progress
            progress = device_status.Progress(
                at.bytes_done, at.bytes_total, place, at.step, at.step_runs, at.progressed
            )  # fmt: skip
        device_policy = self._context.active_policy.device_policy(record.device)
        now = self._context.now()
        offered = offering.offer(record, device_policy.policy, now, self._context.offer_facts(record))
        offer = self._with_signs(record, offered)
        status = device_status.device_status(record, offer, device_policy.rule, device_policy.policy, now, progress)
        holders = tuple(_holder_view(it) for it in self._context.seen.holders.get(uuid, ()))
        said, guard = self._context.observer.last_uses(uuid), self._context.observer.driver.guard
        return replace(
            status,
            setback=self._context.seen.blocked.get(uuid) or status.setback,
            holders=holders,
            use_counter=said.words if said is not None else "",
            use_counter_kind=said.kind if said is not None else "",
            fence=fence(device_policy.policy.fence_mode, guard, uuid),
            openers=_opener_views(guard.openers.of(uuid)) if guard is not None else (),
            was_shared=self.was_shared(record),
        )

    def reported(self) -> ReportedDevices:
        """What the kubelet learns of every device."""
        now = self._context.now()
        records = [record for _, record in sorted(self._context.ledger.records.items())]
        devices = tuple(self._reported(record, self._policy(record), now) for record in records)
        silences = (offering.WAITED_FOR if device.waits else offering.LIST_LASTS for device in devices)
        notary = self._context.ledger.notary
        return ReportedDevices(devices, min(silences, default=0.0), notary.newest if notary is not None else "")

    def _reported(self, record: Record, policy: Policy, now: Moment) -> ReportedDevice:
        quarantine, facts = record.health.quarantine, self._context.offer_facts(record)
        return ReportedDevice(
            uuid=record.device.uuid,
            healthy=offering.offer(record, policy, now, facts).healthy,
            clean=record.state is State.CLEAN,
            numa_node=record.device.numa_node,
            resource=record.device.resource,
            index=record.device.index,
            mig=record.device.mig,
            island=record.device.island or "",
            nodes=record.device.nodes,
            reason=_ailment(record),
            quarantined=quarantine is not None,
            sick=quarantine is None and record.health.ailment is not None,
            replaced=quarantine is not None and AILMENTS[quarantine.ailment.kind].taken_away,
            owner=record.tenancy.acquired_by,
            model=record.device.model,
            memory_bytes=record.device.memory_bytes,
            pci_address=record.device.pci_address or "",
            waits=facts.containers_wait,
            receipts=self._context.receipts(record, policy),
        )

    def _policy(self, record: Record) -> Policy:
        return self._context.active_policy.device_policy(record.device).policy

    async def explain(self, gpu: str) -> views.Explanation:
        """How a device came into its state: its newest events, back to a grant or to its discovery."""
        uuid = device_names.find(self._context.ledger.records, gpu)
        record = self._context.ledger.records[uuid]
        device_policy = self._context.active_policy.device_policy(record.device)
        forbidden = next_scrub.reset_forbidden(record, device_policy.policy)
        blocked, vitals = self._context.seen.blocked.get(uuid, ""), self._context.seen.vitals.get(uuid)
        holders, unseen = self._context.seen.holders.get(uuid, ()), tuple[str, ...]()
        found = holders  # by a search, which leaves out bystanders
        if record.state in (State.GRANTED, State.IN_USE, State.QUARANTINED):
            with suppress(TimeoutError):  # a driver that hangs: the explanation is needed all the more
                async with asyncio.timeout(LOOK):
                    observer = self._context.observer
                    facts = await observer.look(record, Purpose.CHANGE)
                    found = facts.holders or ()
                    holders = found or await observer.process_of_owner(record)
                    if not holders and record.state is not State.QUARANTINED:
                        as_root = os.geteuid() == 0
                        unseen = device_status.in_the_way(record, facts, self._context.now(), as_root=as_root)
        tenants = (await self._pods()) if any(it.container for it in holders) else Tenants()
        pods, units, given = tenants.names, _units(holders), tenants.of(uuid)
        waits = device_status.who_waits(record, given, pods, withheld=self._context.is_withheld(record))
        gone = record.tenancy.container if device_status.is_taken(record, given) else None
        there = {uid: name for uid, name in pods.items() if uid != gone}  # those that the API server can delete
        ends = device_status.ends(holders, there, units) if record.state in (State.GRANTED, State.IN_USE) else ()
        before_release = joined(*(unseen or ends))
        signs = vitals.signs if vitals is not None else ()
        job = self.device(uuid).job
        stalled = tuple(device_status.advice_if_stalled(job)) if job is not None else ()
        [device] = await self._with_pods([uuid])
        others, kubelet = self._others(record, holders, tenants), self._context.observer.epoch() != NO_KUBELET
        namespaces = self._namespaces(record, tenants)
        foreign = device_status.on_others(
            record, others, pods, units, self._tenants_of_others(record), namespaces, kubelet=kubelet
        )
        advice = stalled or device_status.advice(
            record, blocked, reset_forbidden=forbidden, holders=holders, foreign=tuple(foreign), others=others,
            unseen=unseen, pods=there, units=units, owning_pod=device.pod, signs=signs, waits=waits,
        )  # fmt: skip
        if blocked or record.scrubs.setback is not None:
            advice += tuple(f"{it.program} is NVIDIA's: {it.remedy}" for it in self._unlisted())
        advice += tuple(self._listed_in_vain(record, found, pods))
        advice += device_names.had_index(self._context.ledger.records, gpu, uuid)
        shown = tuple(self._holder_view(record, it, pods, foreign=it in others) for it in holders)
        device = replace(device, holders=shown)
        advice += tuple(device_status.kept_by_exempt(shown)) if blocked else ()
        entries = await self.history.of_present_state(uuid)
        advised = set(holders) if blocked else set()  # the advice names them already
        is_owned, is_out = record.state in (State.GRANTED, State.IN_USE), record.state is State.QUARANTINED
        if keeps_out := await self._keeps_out(record, entries, advised):
            advice = (*advice, *keeps_out) if is_out else (*keeps_out, *advice)
        elif not others:  # the advice names those
            use = repeated_uses.unauthorised(entries, self._context.now().uptime)
            words = await self._after_use(
                record, use, device.fence, device_policy.policy.fence_mode, kubelet=kubelet
            )  # fmt: skip
            urgent = is_owned and use is not None and not use.wiped  # before a word about the owner
            advice = (*words, *advice) if urgent else (*advice, *words)
        return views.Explanation(
            device, tuple(map(self.history.shown, entries)), advice, device_policy.why, before_release
        )

    def _listed_in_vain(
        self, record: Record, holders: Sequence[Holder], pods: Mapping[str, str]
    ) -> Iterator[str]:  # fmt: skip
        """Why an entry of ``evict.bystanders`` does not let these processes keep the device open."""
        listed = self._policy(record).evict.all_bystanders(self._fixed.exempt_namespaces)
        for holder in holders:
            if why := bystanders.why_not(listed, holder, pods.get(holder.container or "", "")):
                process = process_names.describe(holder.command, holder.pid)
                yield f"evict.bystanders lists {process}, but it does not count: {why}"

    def _tenants_of_others(self, record: Record) -> dict[str, str]:
        """The other devices that are in use, as commands name them, by the pod or container that has them."""
        others = dict[str, list[str]]()
        for other in self._context.ledger.records.values():
            owner = other.tenancy.owner
            if other is not record and other.state is State.IN_USE and owner is not None and not owner.unannounced:
                others.setdefault(owner.container or "", []).append(device_names.argument(other))
        return {container: ", ".join(gpus) for container, gpus in others.items() if container}

    def _namespaces(
        self, record: Record, tenants: Tenants, earlier: Iterable[str] = ()
    ) -> device_status.Namespaces:  # fmt: skip
        """Those whose pods the policy exempts on this device, and those whose pods were given devices.

        ``earlier``: tenants, of whom some are known as NAMESPACE/POD.
        """
        records = self._context.ledger.records.values()
        owners = [it for record in records if (it := record.tenancy.owner) is not None and not it.unannounced]
        uids = [*(entry.pod for entry in tenants.entries), *(owner.container or "" for owner in owners)]
        of_tenants = {tenants.names.get(uid, "") for uid in uids} | {owner.called for owner in owners}
        of_tenants |= {it for it in earlier if "/" in it}
        exempt = (*self._policy(record).evict.operator_namespaces, *self._fixed.exempt_namespaces)
        return device_status.Namespaces(exempt, {pod.partition("/")[0] for pod in of_tenants} - {""})

    def _let_in(self, record: Record, since: float) -> list[LiveOpener]:
        """Those whom the fence has let through since this wall time, and whom the policy does not exempt."""
        guard, uuid, open_to = self._context.observer.driver.guard, record.device.uuid, fencing.open_to(record)
        if guard is None or open_to is OpenTo.ALL or guard.rules.opens_to_all(uuid):
            return []  # each process may be one of the owner
        return [
            it
            for it in guard.openers.of(uuid)
            if it.opener.was_let_through and not it.ignored and it.opened >= since
            if not guard.places.exempts(uuid, it.opener.pod, it.opener.place)
        ]

    def _others(self, record: Record, holders: Sequence[Holder], tenants: Tenants) -> tuple[Holder, ...]:
        """The programs that have the device open although it was not given to them, and are not exempt.

        The fence has let them through. Without a fence: containers on a device that was given to another pod.
        """
        sharing = _sharing(record, tenants)
        holders = [holder for holder in holders if holder.container not in sharing]
        owner, open_to, grant, since = record.tenancy.owner, fencing.open_to(record), record.tenancy.grant, -math.inf
        if self._context.observer.driver.guard is None:
            if owner is None or not owner.crowded or owner.unannounced:
                return ()
            namespaces = self._policy(record).evict.operator_namespaces
            beside_owner = [holder for holder in holders if holder.container not in (owner.container, None)]
            return tuple(
                it
                for it in beside_owner
                if tenants.names.get(it.container or "", "").partition("/")[0] not in namespaces
            )
        if grant is None and owner is not None and owner.unannounced:  # it opened an idle device
            open_to = OpenTo.SERVICE
        if isinstance(open_to, Group) and grant is not None:  # its processes may have opened the device before that
            since = grant.at.wall
        let_in = self._let_in(record, since)
        names = open_to.names if isinstance(open_to, Container | Pods) else frozenset()
        others = [holder for holder in holders if holder.container not in names]
        return tuple(holder for holder in others if any(it.has(holder) for it in let_in))

    def was_shared(self, record: Record) -> bool:
        """Whether a container was on the device that was not given to it, since the present owner has the device."""
        owner = record.tenancy.owner
        if record.state is not State.IN_USE or owner is None:
            return False
        if owner.crowded:  # a round has seen it there ...
            return True
        let_in = self._let_in(record, owner.since.wall) if owner.container is not None else ()
        return any(it.opener.is_contained for it in let_in)  # ... or only the fence has

    async def _keeps_out(
        self, record: Record, entries: Sequence[LedgerEntry], advised: Collection[Holder]
    ) -> tuple[str, ...]:  # fmt: skip
        """Which other program opens the device so often that it cannot stay clean, and what to do about it."""
        named_already = {(it.pid, it.started) for it in advised}
        uses = [
            it
            for it in repeated_uses.of(entries, self._context.now().uptime)
            if it.last is None or (it.last.pid, it.last.started) not in named_already
        ]
        named = [each.last for each in uses if each.last is not None]
        tenants = (await self._pods()) if any(it.container for it in named) else Tenants()
        pods, namespaces = tenants.names, self._namespaces(record, tenants)
        users = {holder: user for holder in named if (user := proc.user_of(holder.pid, holder.started))}
        guard, node = self._context.observer.driver.guard, next(iter(record.device.nodes), "")
        asked = guard is not None and any(not it.ignored for it in guard.openers.of(record.device.uuid))
        gpu, units = device_names.argument(record), _units(named)
        return tuple(
            device_status.keeps_out(uses, users, pods, gpu, node, asked=asked, units=units, namespaces=namespaces)
        )

    async def _after_use(
        self, record: Record, use: UnauthorisedUse | None, fence: str, mode: FenceMode, *, kubelet: bool
    ) -> tuple[str, ...]:  # fmt: skip
        """What to do about a use of the last hour that was no grant's."""
        if use is None:
            return ()
        guard, tenants = self._context.observer.driver.guard, Tenants()
        if use.tenants or any(map(is_contained, use.places)):
            tenants = await self._pods()
        names, sharing = tenants.names, _sharing(record, tenants)
        places = {it: pod or names.get(it, "") for it, pod in use.places.items() if it not in sharing}
        use = replace(use, places=places, tenants=tuple(names.get(it, it) for it in use.tenants))
        exempt = [
            it for it, pod in places.items() if guard is not None and guard.places.exempts(record.device.uuid, pod, it)
        ]
        return tuple(
            device_status.after_use(
                use if places else None, device_names.argument(record), fence, mode, exempt,
                self._namespaces(record, tenants, use.tenants),
                DeviceWas.GIVEN if use.held else device_status.device_was(record), kubelet=kubelet,
            )
        )  # fmt: skip

    async def _with_pods(self, uuids: Sequence[str]) -> list[views.DeviceStatus]:
        """The devices with the names of their pods, or without these names if they do not arrive in time."""
        records = [self._context.ledger.records[uuid] for uuid in uuids]
        devices = [self.device(uuid) for uuid in uuids]
        if not any(map(device_status.may_have_pod, records)) and not any(it.openers or it.holders for it in devices):
            return devices
        tenants = await self._pods()
        seen = self._context.seen.holders
        others = {record.device.uuid: self._others(record, seen.get(record.device.uuid, ()), tenants)
                  for record in records}  # fmt: skip
        return [
            replace(
                device,
                pod=device_status.pod(record, tenants.of(device.device), tenants.names),
                openers=tuple(self._named(device.device, it, tenants.names) for it in device.openers),
                holders=tuple(
                    self._holder_view(record, it, tenants.names, foreign=it in others[device.device])
                    for it in seen.get(device.device, ())
                ),
            )
            for record, device in zip(records, devices, strict=True)
        ]

    def _holder_view(
        self, record: Record, holder: Holder, pods: Mapping[str, str], *, foreign: bool
    ) -> views.HolderView:  # fmt: skip
        """With whether the policy in force lets it in, though the device is not its own."""
        guard, uuid, container = self._context.observer.driver.guard, record.device.uuid, holder.container
        view = _holder_view(holder, pods, foreign=foreign)
        owner, grant = record.tenancy.owner, record.tenancy.grant
        is_tenant = owner is not None and container == owner.container and not (owner.unannounced and grant is None)
        if guard is None or (container is not None and is_tenant):
            return view
        if container is not None:
            return replace(view, exempt=guard.places.exempts(uuid, view.pod, container, before=True))
        place = guard.places.place_of(holder)
        exempt = place is not None and guard.places.exempts_process(uuid, holder) is True
        return replace(view, exempt=exempt, place=place.name if exempt and place is not None else "")

    def _named(self, uuid: str, opener: views.OpenerView, names: Mapping[str, str]) -> views.OpenerView:
        """With the name of its pod, and whether the policy in force exempts it, which may be another one since."""
        pod, guard = names.get(opener.place, opener.pod), self._context.observer.driver.guard
        exempt = guard is not None and guard.places.exempts(uuid, pod, opener.place, before=opener.exempt)
        return replace(opener, pod=pod, exempt=exempt)

    async def _pods(self) -> Tenants:
        """The pods of the node; none if their names do not arrive in time."""
        try:
            return await self._context.tenants()
        except DeviceError:
            return Tenants()

    def _with_signs(self, record: Record, offer: answers.Offer) -> answers.Offer:
        """The reason of the offer, and all signs that the device reports, also those without a consequence."""
        vitals, kind = self._context.seen.vitals.get(record.device.uuid), _ailment(record)
        signs = vitals.signs if vitals is not None else ()
        also = [f"{sign.kind.value}: {sign.detail}" for sign in signs if sign.kind.value != kind]
        said = [] if also and offer.why == record.state.value else [offer.why]  # the state has a field of its own
        return replace(offer, why="; ".join(said + also))

    def about(self) -> views.ServiceStatus:
        """The facts about the service itself, such as version, start and policy."""
        ledger, active_policy = self._context.ledger, self._context.active_policy
        guard = self._context.observer.driver.guard
        in_force = map(self._policy, ledger.records.values())
        sentences = dict.fromkeys(sentence for policy in in_force for sentence in concessions(policy))  # each once
        return replace(
            self._fixed,
            policy=active_policy.name,
            policy_since=max(self._fixed.started, active_policy.changed),
            ledger_rows=ledger.seq,
            ledger_head=ledger.head.root,
            ledger_fault=ledger.fault.message if ledger.fault is not None else "",
            ledger_remedies=ledger.fault.remedies if ledger.fault is not None else (),
            policy_fault=active_policy.fault,
            concessions=tuple(sentences),
            cupy=self._cupy().cupy or "",
            lacks=self._cupy().lacks,
            history_since=ledger.kept.since,
            steps_since=ledger.kept.steps_since,
            policy_source=active_policy.source if active_policy.path is None else str(active_policy.path.absolute()),
            unlisted=self._unlisted(),
            fence_below=guard.below if guard is not None else "",
            pods_share_groups=guard is not None and guard.rules.pods_share_groups,
        )

    def _unlisted(self) -> tuple[views.UnlistedProgram, ...]:
        """NVIDIA's programs that were seen in pods of namespaces that the policy does not name."""
        evict, since = self._context.active_policy.defaults.evict, self._context.now().uptime - UNLISTED_FOR
        return tuple(
            views.UnlistedProgram(it.exe, it.namespace, nvidia_advice.admit(evict.operator_namespaces, it.namespace))
            for it, seen in dict(self._elsewhere).items()
            if it.namespace is not None
            and seen >= since
            and it.exe in OPERATOR_PROGRAMS
            and it.namespace not in evict.operator_namespaces
        )


def _holder_view(
    holder: Holder, pods: Mapping[str, str] = device_status.NO_PODS, *, foreign: bool = False
) -> views.HolderView:
    container = holder.container or ""
    user, pod = proc.user(holder.pid), pods.get(container, "")
    return views.HolderView(holder.pid, user, holder.command, container, pod, foreign)


def _sharing(record: Record, tenants: Tenants) -> Collection[str]:
    """The pods that the kubelet names as tenants of the device, if the owner is one of them.

    A plugin that shares GPUs may have given it to several pods, before it came behind ours.
    """
    given = tenants.of(record.device.uuid)
    return given if record.tenancy.container in given else ()


def _units(holders: Iterable[Holder]) -> dict[Holder, str]:
    """The units that `systemctl stop` may end to end these processes: not those that run the containers."""
    of_node = [it for it in holders if it.container is None]
    units = {holder: proc.unit(f"/proc/{holder.pid}", holder.started) for holder in of_node}
    return {holder: unit for holder, unit in units.items() if unit and unit not in RUNTIME_UNITS}


def fence(mode: FenceMode, guard: Guard | None, uuid: str) -> str:
    """What the fence does with other programs, and whether the policy says something else."""
    kept_off = guard.rules.kept_off(uuid) if guard is not None else None
    if guard is None or kept_off is None:
        return ""
    if kept_off is KeptOff.NONE:
        return FenceMode.WATCH.value if mode is FenceMode.WATCH else views.WATCHES_ONLY
    if guard.rules.opens_to_all(uuid):
        return views.OPEN_TO_ALL
    return FenceMode.HOLD.value if kept_off is KeptOff.PODS else FenceMode.REFUSE.value


def fence_lacks(mode: FenceMode, guard: Guard | None, uuid: str, no_guard: str) -> str:
    """Why the fence does less for a device than the policy asks for; empty if it does all of it.

    ``no_guard``: why this service has no guard; empty if it began with a policy that wants none.
    """
    if mode is FenceMode.OFF:
        return ""
    if guard is None:
        return no_guard or "the service started with a policy that wants no fence, so a restart puts it up"
    if not (lacks := guard.rules.lacks(uuid)) and fence(mode, guard, uuid) == views.WATCHES_ONLY:
        return "pods are in control groups of version 1"
    return lacks


def _opener_views(openers: Iterable[LiveOpener]) -> tuple[views.OpenerView, ...]:
    """One for each program, as the policy says of it now: it may have asked before it was exempt, and since.

    ``openers``: the latest last.
    """
    programs: dict[tuple[str, str, bool], Opener] = {}
    opened = defaultdict[tuple[str, str, bool], float](float)
    for opener in openers:
        key = opener.opener.place, opener.opener.who.command, opener.ignored
        programs[key] = added(programs.pop(key, None), opener.opener)
        opened[key] = max(opened[key], opener.opened)
    return tuple(
        views.OpenerView(
            it.command,
            it.pid,
            it.place,
            it.pod,
            it.first,
            it.last,
            it.times,
            it.refused,
            it.exempt,
            key[2],
            opened[key],
        )
        for key, it in programs.items()
    )


def _ailment(record: Record) -> str:
    """Why the device is quarantined, or will be when it is released; empty for a healthy device."""
    ailment = record.health.quarantine.ailment if record.health.quarantine is not None else record.health.ailment
    return ailment.kind.value if ailment is not None else ""
