"""What operators are told: status, history, explanations. Reads, never changes anything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from policies import concessions
from policies.model import Policy
from scrubber.core import answers, device_status, event_text, offering, presence, views
from scrubber.core import events as ev
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment, Record, State
from scrubber.devices.base import DeviceError
from scrubber.ground.advertised_device import AdvertisedDevice, AdvertisedDevices
from scrubber.ground.errors import InvalidRequest, Reason
from scrubber.ledger import codec
from scrubber.node.pods import Tenants
from scrubber.service.service import Service
from scrubber.workers.zygote_wire import Ready

MOST_ENTRIES = 2_000  # in one answer: every row is told in words, and callers of the hooks wait meanwhile
EXPLAINED = 200  # the newest rows: enough for several lives of a device


@dataclass(frozen=True, slots=True)
class ServiceIdentity:
    """What the service says of itself."""

    version: str
    backend: str
    simulated_dir: str
    state_dir: str
    started: float
    set_aside: tuple[str, ...] = ()  # damaged ledgers, as found at the start


async def nobody() -> Tenants:
    """Where there is no kubelet."""
    return Tenants()


class StatusReporter:
    """Answers questions about devices by index, UUID or unique prefix."""

    def __init__(
        self,
        service: Service,
        identity: ServiceIdentity,
        cupy: Callable[[], Ready] = Ready,
        tenants: Callable[[], Awaitable[Tenants]] = nobody,
    ) -> None:
        """Look through the service's eyes. ``cupy`` is what its zygote says of it, ``tenants`` whose devices are."""
        self._service = service
        self._cupy = cupy
        self._tenants = tenants
        self._identity = identity

    def find(self, gpu: str) -> str:
        """The UUID of the one device that this names."""
        records = self._service.context.ledger.records
        if gpu in records:
            return gpu
        if gpu.replace(":", "", 1).isdecimal():  # an index names every slice of its GPU: one, if it is alone
            named = [it for it in records.values() if gpu in (it.device.name, str(it.device.index))]
            there = [it for it in named if not _gone(it)]  # what has gone leaves its name to what took its place
            found = there or named
        else:
            found = [it for uuid, it in records.items() if uuid.lower().startswith(gpu.lower())] if gpu else []
        if len(found) == 1:
            return found[0].device.uuid
        choice = sorted(f"{it.device.name} ({it.device.uuid})" for it in found)
        why = f"it could be any of {', '.join(choice)}" if found else "there is none of that name"
        raise InvalidRequest(
            f"cannot find device {gpu}: {why}", Reason.INVALID_REQUEST if found else Reason.UNKNOWN_DEVICE
        )

    async def status(self, gpus: Sequence[str]) -> views.Status:
        """Some devices or all that are there or missed, by index, and whose they are."""
        uuids = [self.find(gpu) for gpu in gpus] or self.present()
        about = self.about()  # of the same moment as the devices: whoever waits for news goes by its row
        devices = await self._with_pods(uuids)
        return views.Status(tuple(sorted(devices, key=lambda device: (device.index, device.slice or 0))), about)

    def present(self) -> list[str]:
        """All but those that were taken away on purpose, a while ago."""
        vitals, now = self._service.context.vitals, self._service.context.now()
        records = self._service.context.ledger.records.items()
        return [uuid for uuid, record in records if not device_status.is_past(record, vitals.get(uuid), now)]

    def device(self, uuid: str) -> views.DeviceStatus:
        """One device."""
        record = self._service.context.ledger.records[uuid]
        running = self._service.context.jobs.of(uuid)
        progress = (running.done, running.total) if running else (0, 0)
        device_policy = self._service.context.active_policy.device_policy(record.device)
        now = self._service.context.now()
        advert = self._with_signs(record, self._advert(record, device_policy.policy, now))
        status = device_status.device_status(record, advert, device_policy.rule, device_policy.policy, now, progress)
        blocked = self._service.context.blocked.get(uuid)
        return replace(status, setback=blocked) if blocked else status

    def adverts(self) -> AdvertisedDevices:
        """What the kubelet may be told of every device."""
        now = self._service.context.now()
        ruled = [(record, self._policy(record)) for _, record in sorted(self._service.context.ledger.records.items())]
        devices = tuple(
            AdvertisedDevice(
                device=record.device.uuid,
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
            )
            for record, policy in ruled
        )
        return AdvertisedDevices(devices, min((policy.budgets.silence for _, policy in ruled), default=0.0))

    def _policy(self, record: Record) -> Policy:
        return self._service.context.active_policy.device_policy(record.device).policy

    async def history(self, gpu: str, since: float, limit: int) -> tuple[views.HistoryEntry, ...]:
        """Rows of the ledger, newest last."""
        device = self.find(gpu) if gpu else None
        if limit < 0:
            raise InvalidRequest("cannot list history: the limit is negative")
        limit = min(limit or MOST_ENTRIES, MOST_ENTRIES)
        entries = await self._service.context.ledger.history(device, since or None, limit)
        return tuple(self._entry(entry) for entry in entries)

    async def explain(self, gpu: str) -> views.Explanation:
        """How a device came to be where it is, since it was last handed out or first seen."""
        uuid = self.find(gpu)
        record = self._service.context.ledger.records[uuid]
        entries = _chapter(await self._service.context.ledger.history(uuid, None, EXPLAINED), record.state)
        why = self._service.context.active_policy.device_policy(record.device).why
        advice = device_status.advice(record, self._service.context.blocked.get(uuid, ""))
        [device] = await self._with_pods([uuid])
        return views.Explanation(device, tuple(map(self._entry, entries)), advice, why)

    async def _with_pods(self, uuids: Sequence[str]) -> list[views.DeviceStatus]:
        """As they stand now, and whose they are as far as that is known by then: nobody's status waits for a name."""
        records = [self._service.context.ledger.records[uuid] for uuid in uuids]
        devices = [self.device(uuid) for uuid in uuids]
        if not any(map(device_status.may_have_pod, records)):
            return devices
        try:
            tenants = await self._tenants()
        except DeviceError:  # late
            return devices
        return [
            replace(device, pod=device_status.pod(record, tenants.of(device.device), tenants.names))
            for record, device in zip(records, devices, strict=True)
        ]

    def _advert(self, record: Record, policy: Policy, now: Moment) -> answers.Offer:
        context = self._service.context
        return offering.offer(
            record,
            policy,
            now,
            ledger_fault=context.ledger.fault is not None,
            withheld=context.is_withheld(record),
            blocked=context.blocked.get(record.device.uuid, ""),
        )

    def _with_signs(self, record: Record, advert: answers.Offer) -> answers.Offer:
        """What is told of it is shown also where it keeps nobody out."""
        vitals, kind = self._service.context.vitals.get(record.device.uuid), _ailment(record)
        signs = vitals.signs if vitals is not None else ()
        also = (f"{sign.kind.value}: {sign.detail}" for sign in signs if sign.kind.value != kind)
        return replace(advert, why="; ".join((advert.why, *also)))

    def about(self) -> views.ServiceStatus:
        """The service itself."""
        ledger, active_policy, identity = (
            self._service.context.ledger,
            self._service.context.active_policy,
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
            policy_source=active_policy.source if active_policy.path is None else str(active_policy.path.absolute()),
        )

    def _concessions(self) -> tuple[str, ...]:
        """Of every rule that a device falls under, each sentence once."""
        device_policies = [
            self._service.context.active_policy.device_policy(record.device)
            for record in self._service.context.ledger.records.values()
        ]
        return tuple(
            dict.fromkeys(
                sentence for device_policy in device_policies for sentence in concessions.of(device_policy.policy)
            )
        )

    def _entry(self, entry: LedgerEntry) -> views.HistoryEntry:
        kind, body = codec.encode(entry.event)
        record = self._service.context.ledger.records.get(entry.device)
        index, number = (record.device.index, record.device.slice) if record else (-1, None)
        text = event_text.tell(entry.event)
        return views.HistoryEntry(entry.seq, entry.device, index, entry.at.wall, entry.op, kind, text, body, number)


def _ailment(record: Record) -> str:
    """The word for why it is kept out, or ought to be once it is free; empty for a sound device."""
    ailment = record.quarantine.ailment if record.quarantine is not None else record.ailment
    return ailment.kind.value if ailment is not None else ""


def _gone(record: Record) -> bool:
    return record.quarantine is not None and record.quarantine.ailment.kind in presence.GONE


def _chapter(entries: tuple[LedgerEntry, ...], state: State) -> tuple[LedgerEntry, ...]:
    """From the grant that began this life of the device; while it is handed out, from the one before, for the proof."""
    begins = (ev.Discovered, ev.Granted, ev.GrantedUnproven)
    starts = [number for number, entry in enumerate(entries) if isinstance(entry.event, begins)]
    wanted = 2 if state in (State.GRANTED, State.IN_USE) else 1
    return entries[starts[-min(wanted, len(starts))] :] if starts else entries
