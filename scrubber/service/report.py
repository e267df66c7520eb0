"""What people read (status, history, explanations), and the list of devices for the plugin. Changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from policies import concessions
from policies.model import Policy
from scrubber.core import answers, cluster_programs, device_status, event_text, offering, presence, proof, views
from scrubber.core import events as ev
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment, Record, State
from scrubber.devices.base import DeviceError
from scrubber.ground.device_messages import AdvertisedDevice, AdvertisedDevices
from scrubber.ground.errors import InvalidRequest, Reason
from scrubber.ledger import codec
from scrubber.ledger.store import EVERYTHING, Window
from scrubber.node.bystanders import Bystander
from scrubber.node.pods import Tenants
from scrubber.service.context import ServiceContext
from scrubber.workers.wire import Ready

MAX_ENTRIES = 2_000  # rows in one answer: other requests wait while their sentences are made
_KINDS = f"the kinds are {', '.join(codec.CLASSES)}"
UNLISTED_FOR = 3600.0  # seconds for which a program that had a device open is reported
EXPLAINED = 200  # the newest rows of a device: enough for several of its owners


@dataclass(frozen=True, slots=True)
class ServiceIdentity:
    """What the service reports about itself, fixed at its start."""

    version: str
    backend: str
    simulated_dir: str
    state_dir: str
    started: float
    set_aside: tuple[str, ...] = ()  # the damaged ledgers that were found at the start


async def no_pods() -> Tenants:
    """No pods: the node has no kubelet."""
    return Tenants()


class StatusReporter:
    """Answers questions about devices by index, UUID or unique prefix."""

    def __init__(
        self,
        context: ServiceContext,
        identity: ServiceIdentity,
        cupy: Callable[[], Ready] = Ready,
        tenants: Callable[[], Awaitable[Tenants]] = no_pods,
        elsewhere: Mapping[Bystander, float] = MappingProxyType({}),
    ) -> None:
        """``cupy`` returns the zygote's report about CuPy; ``tenants`` returns the pods that own devices.

        ``elsewhere``: programs that would be bystanders in other places, and the uptime when each last had a device.
        """
        self._context = context
        self._cupy = cupy
        self._tenants = tenants
        self._identity = identity
        self._elsewhere = elsewhere

    def find(self, gpu: str) -> str:
        """The UUID of the one device with this name; InvalidRequest when no device or several devices have it."""
        records = self._context.ledger.records
        if gpu in records:
            return gpu
        if gpu.replace(":", "", 1).isdecimal():  # an index stands for all slices of its GPU
            named = [record for record in records.values() if gpu in (record.device.name, str(record.device.index))]
            present = [
                record for record in named if not presence.is_gone(record)
            ]  # a replaced device may have the same index
            found = present or named
        else:
            found = [record for uuid, record in records.items() if uuid.lower().startswith(gpu.lower())] if gpu else []
        if len(found) == 1:
            return found[0].device.uuid
        choice = sorted(f"{record.device.name} ({record.device.uuid})" for record in found)
        why = f"it could be any of {', '.join(choice)}" if found else "no device has this name"
        raise InvalidRequest(
            f"cannot find device {gpu}: {why}", Reason.INVALID_REQUEST if found else Reason.UNKNOWN_DEVICE
        )

    async def status(self, gpus: Sequence[str]) -> views.Status:
        """The named devices, or all ``listed`` ones, by index, with their pods."""
        uuids = [self.find(gpu) for gpu in gpus] or self.listed()
        about = self.about()  # first: a client waits for rows after ``ledger_rows``, and must miss none
        devices = await self._with_pods(uuids)
        return views.Status(tuple(sorted(devices, key=lambda device: (device.index, device.slice or 0))), about)

    def listed(self) -> list[str]:
        """All devices except those that were taken away on purpose some time ago."""
        vitals, now = self._context.vitals, self._context.now()
        records = self._context.ledger.records.items()
        return [uuid for uuid, record in records if not device_status.is_past(record, vitals.get(uuid), now)]

    def device(self, uuid: str) -> views.DeviceStatus:
        """The status of one device, without its pod."""
        record = self._context.ledger.records[uuid]
        running = self._context.jobs.of(uuid)
        progress = (running.bytes_done, running.bytes_total) if running else (0, 0)
        device_policy = self._context.active_policy.device_policy(record.device)
        now = self._context.now()
        advert = self._with_signs(record, self._advert(record, device_policy.policy, now))
        place = self._context.jobs.slots.place(uuid)
        status = device_status.device_status(
            record, advert, device_policy.rule, device_policy.policy, now, progress, place
        )
        blocked = self._context.blocked.get(uuid)
        return replace(status, setback=blocked) if blocked else status

    def adverts(self) -> AdvertisedDevices:
        """What the kubelet learns of every device."""
        now = self._context.now()
        policies = [(record, self._policy(record)) for _, record in sorted(self._context.ledger.records.items())]
        devices = tuple(
            AdvertisedDevice(
                uuid=record.device.uuid,
                healthy=self._advert(record, policy, now).healthy,
                clean=record.state is State.CLEAN,
                numa_node=record.device.numa_node,
                resource=record.device.resource,
                index=record.device.index,
                mig=record.device.mig,
                island=record.device.island or "",
                nodes=record.device.nodes,
                reason=_ailment(record),
                quarantined=record.quarantine is not None,
                sick=record.quarantine is None and record.ailment is not None,
                replaced=record.quarantine is not None and record.quarantine.ailment.kind in presence.TAKEN_AWAY,
                owner=record.grant.owner if record.grant is not None else "",
                model=record.device.model,
                memory_bytes=record.device.memory_bytes,
                pci_address=record.device.pci_address or "",
            )
            for record, policy in policies
        )
        return AdvertisedDevices(devices, min((policy.budgets.silence for _, policy in policies), default=0.0))

    def _policy(self, record: Record) -> Policy:
        return self._context.active_policy.device_policy(record.device).policy

    async def history(
        self, gpu: str, since: float, limit: int, window: Window = EVERYTHING, *, without_steps: bool = False
    ) -> tuple[views.HistoryEntry, ...]:
        """The newest rows of the window, newest last. Fewer than ``limit`` and ``MAX_ENTRIES``: there are no more.

        ``without_steps``: a scrub is the row of its end.
        """
        device = self.find(gpu) if gpu else None
        if limit < 0:
            raise InvalidRequest("cannot list history: the limit is negative")
        if unknown := sorted(window.kinds - codec.CLASSES.keys()):
            raise InvalidRequest(f"cannot list history: no event is of kind {unknown[0]}; {_KINDS}")
        limit = min(limit or MAX_ENTRIES, MAX_ENTRIES)
        if not window.kinds and (window.warnings or without_steps):
            wanted = set(ev.WARNINGS) if window.warnings else codec.KINDS.keys() - set(ev.STEPS)
            window = replace(window, kinds=frozenset(codec.KINDS[event] for event in wanted))
        entries: list[LedgerEntry] = []
        while True:
            rows = MAX_ENTRIES if window.warnings else limit
            page = await self._context.ledger.history(device, since or None, rows, window)
            entries[:0] = [entry for entry in page if not window.warnings or ev.is_warning(entry.event)]
            if not window.warnings or len(page) < MAX_ENTRIES or len(entries) >= limit:
                return tuple(self._entry(entry) for entry in entries[-limit:])
            window = replace(window, before=page[0].seq)

    async def explain(self, gpu: str) -> views.Explanation:
        """How a device came into its state: its newest events, back to a grant or to its discovery."""
        uuid = self.find(gpu)
        record = self._context.ledger.records[uuid]
        entries = _since_last_grant(await self._context.ledger.history(uuid, None, EXPLAINED), record.state)
        device_policy = self._context.active_policy.device_policy(record.device)
        forbidden = proof.reset_forbidden(record, device_policy.policy)
        blocked = self._context.blocked.get(uuid, "")
        advice = device_status.advice(record, blocked, reset_forbidden=forbidden)
        if blocked or record.setback is not None:
            advice += tuple(f"{it.program} is NVIDIA's: {it.remedy}" for it in self._unlisted())
        [device] = await self._with_pods([uuid])
        return views.Explanation(device, tuple(map(self._entry, entries)), advice, device_policy.why)

    async def _with_pods(self, uuids: Sequence[str]) -> list[views.DeviceStatus]:
        """The devices with the names of their pods. Without the names if they do not come in time."""
        records = [self._context.ledger.records[uuid] for uuid in uuids]
        devices = [self.device(uuid) for uuid in uuids]
        if not any(map(device_status.may_have_pod, records)):
            return devices
        try:
            tenants = await self._tenants()
        except DeviceError:  # the names are late
            return devices
        return [
            replace(device, pod=device_status.pod(record, tenants.of(device.device), tenants.names))
            for record, device in zip(records, devices, strict=True)
        ]

    def _advert(self, record: Record, policy: Policy, now: Moment) -> answers.Offer:
        return offering.offer(record, policy, now, self._context.offer_facts(record))

    def _with_signs(self, record: Record, advert: answers.Offer) -> answers.Offer:
        """The reason of the offer, and all signs that the device reports, also those without a consequence."""
        vitals, kind = self._context.vitals.get(record.device.uuid), _ailment(record)
        signs = vitals.signs if vitals is not None else ()
        also = (f"{sign.kind.value}: {sign.detail}" for sign in signs if sign.kind.value != kind)
        return replace(advert, why="; ".join((advert.why, *also)))

    def about(self) -> views.ServiceStatus:
        """The facts about the service itself, such as version, start and policy."""
        ledger, active_policy, identity = (
            self._context.ledger,
            self._context.active_policy,
            self._identity,
        )
        return views.ServiceStatus(
            version=identity.version,
            backend=identity.backend,
            policy=active_policy.name,
            simulated_dir=identity.simulated_dir,
            state_dir=identity.state_dir,
            ledger_rows=ledger.seq,
            ledger_head=ledger.head.hash,
            ledger_fault=ledger.fault or "",
            policy_fault=active_policy.fault,
            started=identity.started,
            set_aside=identity.set_aside,
            concessions=self._concessions(),
            cupy=self._cupy().cupy or "",
            lacks=self._cupy().lacks,
            history_since=ledger.kept.since,
            steps_since=ledger.kept.steps_since,
            policy_source=active_policy.source if active_policy.path is None else str(active_policy.path.absolute()),
            unlisted=self._unlisted(),
        )

    def _unlisted(self) -> tuple[views.UnlistedProgram, ...]:
        """NVIDIA's programs that were seen in pods of namespaces that the policy does not name."""
        evict, since = self._context.active_policy.defaults.evict, self._context.now().uptime - UNLISTED_FOR
        return tuple(
            views.UnlistedProgram(it.exe, it.namespace, cluster_programs.admit(evict.operator_namespaces, it.namespace))
            for it, seen in dict(self._elsewhere).items()
            if it.namespace is not None
            and seen >= since
            and it.exe in evict.operator_programs
            and it.namespace not in evict.operator_namespaces
        )

    def _concessions(self) -> tuple[str, ...]:
        """The concessions of all policies in force for a device, each sentence once."""
        device_policies = [
            self._context.active_policy.device_policy(record.device) for record in self._context.ledger.records.values()
        ]
        return tuple(
            dict.fromkeys(
                sentence for device_policy in device_policies for sentence in concessions.of(device_policy.policy)
            )
        )

    def _entry(self, entry: LedgerEntry) -> views.HistoryEntry:
        kind, body = codec.encode(entry.event)
        record = self._context.ledger.records.get(entry.device)
        index, number = (record.device.index, record.device.slice) if record else (-1, None)
        text = event_text.tell(entry.event)
        return views.HistoryEntry(entry.seq, entry.device, index, entry.at.wall, entry.op, kind, text, body, number)


def _ailment(record: Record) -> str:
    """Why the device is quarantined, or will be when it is released; empty for a healthy device."""
    ailment = record.quarantine.ailment if record.quarantine is not None else record.ailment
    return ailment.kind.value if ailment is not None else ""


def _since_last_grant(entries: tuple[LedgerEntry, ...], state: State) -> tuple[LedgerEntry, ...]:
    """The entries since the last grant. For a device that is granted or in use, they begin one grant earlier."""
    begins = (ev.Discovered, ev.Granted, ev.GrantedUnproven)
    starts = [number for number, entry in enumerate(entries) if isinstance(entry.event, begins)]
    wanted = 2 if state in (State.GRANTED, State.IN_USE) else 1
    return entries[starts[-min(wanted, len(starts))] :] if starts else entries
