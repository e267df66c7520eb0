"""What the service does without a request: recover after a start, record the inventory, and act on each device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from ground import log
from scrubber.core import absence, answers, next_action, ownership, proof, stuck
from scrubber.core import events as ev
from scrubber.core.model import Baseline, DeviceInfo, Facts, Incarnation, State, Stuck, Trigger, Vitals
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from scrubber.devices.base import DeviceError
from scrubber.service.context import MAX_ROUNDS, ServiceContext

logger = log.get("service")


class Upkeep:
    """Takes care of devices while no request asks for them."""

    def __init__(self, context: ServiceContext, on_vitals: Callable[[Record, Vitals], None]) -> None:
        """``on_vitals`` is called with every health report of a device. Call ``recover`` before any other method."""
        self._context = context
        self._on_vitals = on_vitals
        self._hanging: dict[str, Stuck] = {}  # holders that hang in the kernel, all of a device's

    async def recover(self) -> None:
        """Close every job that was open when the last service ended, because it proved nothing.

        If the ledger may be an older copy, also distrust all devices.
        """
        context = self._context
        if context.fence is not None:
            with suppress(DeviceError):  # without the devices, no proof of an earlier run counts on
                await context.observer.driver.inventory()
                context.fence.resume(context.ledger.records.values())
        op = context.operation()
        why = "the service was stopped or killed during the job"
        events = [
            (device, next_action.interruption(record, why, context.now()))
            for device, record in context.ledger.records.items()
            if record.scrubs.job is not None
        ]
        doubted = await self._doubted_devices() if context.ledger.may_be_old else []
        if events or doubted:
            await context.ledger.append(op, *events, *doubted)
        if events:
            logger.warning("jobs were interrupted by the last stop", op=op, devices=[device for device, _ in events])

    async def _doubted_devices(self) -> list[tuple[str, ev.Event]]:
        """For each device of this boot, the event that ends the trust in it."""
        try:
            boot_id = (await self._context.observer.driver.incarnation()).boot_id
        except DeviceError:
            boot_id = None
        events = {
            device: proof.ended_by_older_ledger(record, boot_id)
            for device, record in self._context.ledger.records.items()
        }
        return [(device, event) for device, event in events.items() if event is not None]

    async def register(self, device: DeviceInfo, incarnation: Incarnation) -> None:
        """Record a device of the inventory that is new or has changed."""
        context = self._context
        record = context.ledger.records.get(device.uuid)
        orphaned = record is not None and record.scrubs.job is not None and context.jobs.of(device.uuid) is None
        if orphaned or (record is not None and record.device == device):
            return  # reconcile closes an orphaned job first
        async with context.jobs.locks.of([device.uuid]):
            if record is None:
                policy = context.active_policy.device_policy(device).policy
                before = next_action.earlier_errors(
                    Baseline(), await context.observer.health.vitals(device.uuid), policy
                )
                first: list[ev.Event] = [ev.Discovered(device, incarnation), *((before,) if before is not None else ())]
                await context.ledger.append(context.operation(), *((device.uuid, event) for event in first))
                return
            record = context.record(device.uuid)  # may have changed while we waited for the lock
            events: list[tuple[str, ev.Event]] = [(device.uuid, ev.Described(device))]
            if _proven_properties(device, record) != _proven_properties(record.device, record):
                await context.jobs.cancel(device.uuid)  # the job works on the old memory or layout
                events.append((device.uuid, ev.Distrusted("its memory size, model or layout has changed", incarnation)))
            await context.ledger.append(context.operation(), *events)

    async def name_pods(self) -> None:
        """Record the names of the pods that have devices, while the kubelet still has them."""
        context = self._context
        nameless = [record for record in context.ledger.records.values() if ownership.is_nameless(record)]
        if not nameless or context.ledger.fault is not None:
            return
        try:
            names = (await context.tenants()).names
        except DeviceError:  # a name that does not arrive in time is missing; this is not an error
            return
        for record in nameless:
            if ownership.called(record, names) is not None:
                await self._name_pod(record.device.uuid, names)

    async def _name_pod(self, device: str, names: Mapping[str, str]) -> None:
        context = self._context
        async with context.jobs.locks.of([device]):
            event = ownership.called(context.record(device), names)
            if event is not None:
                await context.ledger.append(context.operation(), (device, event))

    def needs_nothing(self, record: Record, facts: Facts) -> bool:
        """Whether these facts call for no action, so that ``reconcile`` need not observe the device again."""
        context = self._context
        device, vitals = record.device.uuid, facts.vitals
        context.seen.holders[device] = context.observer.known_holders(record, facts)
        hung = self._hanging_now(device, facts)
        if context.jobs.stopping or record.scrubs.job is not None or context.ledger.records.get(device) is not record:
            return False
        if ownership.needs_assignment(record.tenancy.owner, facts) or hung is not None:
            return False
        if vitals is None or vitals != context.seen.vitals.get(device) or device in context.seen.blocked:
            return False
        device_policy = context.active_policy.device_policy(record.device)
        facts = self._with_other_devices(record, facts)
        return next_action.tend(record, facts, device_policy.policy, facts.at, chance=0.0) == answers.Proceed()

    async def reconcile(self, device: str, op: str = "") -> Record | None:
        """Observe a device, compare it with its record, and act. Returns the record if nothing is left to do."""
        context = self._context
        if context.jobs.stopping:
            return None
        vitals = await context.observer.health.vitals(device, context.record(device).device.parent)
        if vitals is not None:
            self._report(device, vitals)
        async with context.jobs.locks.of([device]):
            op = context.operation(op)
            if await context.close_orphaned_job(device, op):
                return None
            for _ in range(MAX_ROUNDS):
                record = context.record(device)
                seen = await context.observer.look(record, Purpose.ROUND)
                context.seen.holders[device] = context.observer.known_holders(record, seen)
                seen = replace(seen, vitals=vitals, hung=self._hanging_now(device, seen))
                device_policy = context.active_policy.device_policy(record.device)
                facts = self._with_other_devices(record, seen)
                answer = next_action.tend(record, facts, device_policy.policy, facts.at, context.chance())
                context.seen.blocked.pop(device, None)
                match answer:
                    case answers.RecordFirst(event):  # and ask again: after ``Released`` the answer is a scrub
                        await context.ledger.append(op, (device, event), seen={device: facts})
                    case answers.Blocked(why):
                        context.seen.blocked[device] = why
                        return None
                    case answers.Scrub() | answers.StartProbation() if (
                        obstacle := context.clear_obstacle(record.device)
                    ) is not None:
                        context.seen.blocked[device] = f"cannot clear its memory: {obstacle}"
                        return None
                    case answers.Scrub(path, trigger):
                        await context.jobs.start(device, path, trigger, device_policy, op)
                        return None
                    case answers.StartProbation(path):
                        await context.jobs.start(device, path, Trigger.PROBATION, device_policy, op)
                        return None
                    case answers.Proceed():
                        return record
            state = context.record(device).state.value
            logger.error("internal error: no decision", op=op, device=device, state=state, rounds=MAX_ROUNDS)
            return None

    def _report(self, device: str, vitals: Vitals) -> None:
        """Log each sign when it begins and when it ends. The policy decides whether it leads to a quarantine."""
        self._on_vitals(self._context.record(device), vitals)
        if vitals.partial:
            return
        before, self._context.seen.vitals[device] = self._context.seen.vitals.get(device, Vitals()), vitals
        old, new = ({sign.kind for sign in each.signs} for each in (before, vitals))
        for sign in vitals.signs:
            if sign.kind not in old:
                logger.warning("the device reports a fault", device=device, sign=sign.kind.value, detail=sign.detail)
        for kind in old - new:
            logger.info("the device no longer reports the fault", device=device, sign=kind.value)

    def _hanging_now(self, device: str, facts: Facts) -> Stuck | None:
        """The holders that hang in the kernel, after this observation; None if there are none or one does not hang."""
        hung = stuck.after_answer(self._hanging.pop(device, None), ownership.hanging(facts), facts.at)
        if hung is not None:
            self._hanging[device] = hung
        return hung

    def _with_other_devices(self, record: Record, facts: Facts) -> Facts:
        """The facts, and what the service adds: whether the device is withheld, and which device took its place."""
        context = self._context
        successor, withheld = absence.successor(record, context.ledger.records.values()), context.is_withheld(record)
        if not (withheld or successor):
            return facts  # the usual case, for every device in every round: copy nothing
        return replace(facts, withheld=withheld, successor=successor)


def _proven_properties(device: DeviceInfo, record: Record) -> tuple[object, ...]:
    """The properties that a proof is about; the others may change without a scrub.

    For a device that is granted or in use, the reset domain does not count. It may change when other devices of the
    board get another layout, and the owner keeps the device.
    """
    domain = None if record.state in (State.GRANTED, State.IN_USE) else device.reset_domain
    return device.memory_bytes, device.mig, device.model, domain
