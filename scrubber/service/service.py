"""The use cases. Each reads as its sentence: lock, look, decide, do, record.

``hooks`` holds those of whoever hands devices out, and the rules that hold here as well; here stand taking them back,
what operators ask for, and what the monitor does by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from scrubber.core import answers, burn_in, leftover, ownership, presence, proof, release, siblings, upkeep
from scrubber.core import events as ev
from scrubber.core.model import (
    Ailment,
    AilmentKind,
    DeviceInfo,
    Facts,
    Incarnation,
    Outcome,
    Path,
    Record,
    State,
    Trigger,
    Vitals,
)
from scrubber.ground import log
from scrubber.ground.errors import NotReady, Reason, Refused
from scrubber.jobs.jobs import Jobs
from scrubber.jobs.scrub_job import ScrubJob
from scrubber.ledger.ledger import Ledger
from scrubber.observe.observer import Observer
from scrubber.policy import ActivePolicy, DevicePolicy
from scrubber.service.handover import ROUNDS, Handover, Lacks, Tools, raise_refusals

logger = log.get("service")


MEND_AGAIN = 60.0  # seconds after a try to bring back what a reset owes that has failed


def _unheard(_record: Record, _vitals: Vitals) -> None:
    """Where nobody wants to know."""


class Service(Handover):
    """Who may have a device, and what is done about it."""

    def __init__(
        self,
        ledger: Ledger,
        observer: Observer,
        jobs: Jobs,
        active_policy: ActivePolicy,
        tools: Tools,
        lacks: Lacks,
        *,
        told: Callable[[Record, Vitals], None] = _unheard,
    ) -> None:
        """Nothing is done yet: ``recover`` comes first. ``told`` hears what devices say of themselves."""
        super().__init__(ledger, observer, jobs, active_policy, tools, lacks)
        self._told = told
        self._mending: dict[str, asyncio.Task[None]] = {}
        self._mend_again: dict[str, float] = {}  # uptime
        self._tests = asyncio.Lock()
        self._hung: dict[str, tuple[frozenset[tuple[int, float]], float]] = {}  # who hangs on it, and since when

    async def release(self, devices: Sequence[str], *, op: str = "") -> None:
        """The last user is gone, says the caller; believed when nobody is found."""
        op = self._op(op)
        budget = self.now().uptime + min(self._policy(device).budgets.allocate for device in devices)
        async with self._locked(devices, budget):
            replies = await self._ask_all(devices, self._ask_release, budget)
            raise_refusals(replies, set())
            notes = [(device, answer.event) for device, answer in replies.items() if isinstance(answer, answers.Note)]
            if notes:
                await self.ledger.append(op, *notes)
        for device in devices:
            await self.tend(device, op)

    # -- for operators

    async def scrub(self, device: str, path: Path | None, *, op: str = "") -> ScrubJob:
        """Start a scrub now, or join the one that runs."""
        async with self.locks.of([device]):
            op = self._op(op)
            await self._closed_orphan(device, op)
            record = self._known(device)
            running = self.jobs.of(device)
            if running is not None:
                return running
            if record.state is State.QUARANTINED:
                raise Refused(Reason.QUARANTINED, f"cannot scrub {device}: it is quarantined; use reinstate")
            self._demand_means(device, "scrub")
            record = await self._settled(device, op)
            if record.state in (State.GRANTED, State.IN_USE):
                raise Refused(Reason.IN_USE, f"cannot scrub {device}: it is {record.state.value}; release it first")
            await self._demand_free(record)
            device_policy = self.active_policy.device_policy(record.device)
            if record.ailment is not None:
                raise Refused(Reason.SICK, f"cannot scrub {device}: it is sick and about to be quarantined")
            due = proof.next_path(record, device_policy.policy)
            wanted = due if path is None or due is Path.SLOW else path  # nobody is asked for less than is due
            return await self.jobs.begin(device, wanted, Trigger.REQUEST, device_policy, self._op(op))

    async def quarantine(self, device: str, reason: str, by: str, *, op: str = "") -> None:
        """Take a device out by hand. In use: reported sick now, taken out when it is released."""
        async with self.locks.of([device]):
            record = self._known(device)
            ailment = Ailment(AilmentKind.OPERATOR, reason, sticky=True)
            event: ev.Event = ev.AilmentFound(upkeep.taken_out(record, f"{reason} (asked by {by})"))
            if record.state not in (State.GRANTED, State.IN_USE):
                vitals = await self._observer.vitals(device)
                policy = self._policy(record.device.uuid)
                event = upkeep.confine(record, ailment, by, vitals, policy, self.now(), self._tools.chance())
            await self.ledger.append(self._op(op), (device, event))
            await self.jobs.cancel(device)

    async def reinstate(self, device: str, reason: str, by: str, *, op: str = "") -> ScrubJob:
        """Bring a quarantined device back by evidence: the slow path, passed."""
        async with self.locks.of([device]):
            op = self._op(op)
            await self._closed_orphan(device, op)
            running = self.jobs.of(device)
            record = self._known(device)
            if running is not None and record.job is not None and record.job.trigger is Trigger.REINSTATE:
                return running
            if record.quarantine is not None:
                record = await self._without_job(device)
            if record.state is not State.QUARANTINED:
                raise Refused(Reason.NOT_QUARANTINED, f"cannot reinstate {device}: it is not quarantined")
            self._demand_means(device, "reinstate")
            await self._demand_free(await self._settled(device, op))
            await self._hear(device, op)
            device_policy = self.active_policy.device_policy(record.device)
            return await self.jobs.begin(
                device, Path.SLOW, Trigger.REINSTATE, device_policy, self._op(op), _words(by, reason)
            )  # fmt: skip

    async def reinstate_without_proof(self, device: str, reason: str, by: str, *, op: str = "") -> ScrubJob:
        """End a quarantine without evidence, as a person wants it. Its memory is proven like after any tenant."""
        async with self.locks.of([device]):
            op = self._op(op)
            await self._closed_orphan(device, op)
            if self._known(device).quarantine is None:
                raise Refused(Reason.NOT_QUARANTINED, f"cannot reinstate {device}: it is not quarantined")
            self._demand_means(device, "reinstate")
            await self._without_job(device)
            record = await self._settled(device, op)
            await self._demand_free(record)
            device_policy = self.active_policy.device_policy(record.device)
            await self._hear(device, op)
            await self.ledger.append(self._op(op), (device, ev.Reinstated(_words(by, reason))))
            path = proof.next_path(self._known(device), device_policy.policy)
            return await self.jobs.begin(device, path, Trigger.REINSTATE, device_policy, op)

    # -- for the monitor

    async def recover(self) -> None:
        """After a start: every job that was open proved nothing."""
        op = self._op()
        events = [
            (device, upkeep.interruption(record, "the service was stopped or killed while it ran", self.now()))
            for device, record in self.ledger.records.items()
            if record.job is not None
        ]
        if events:
            await self.ledger.append(op, *events)
            logger.warning("jobs were cut off by the last stop", op=op, devices=[device for device, _ in events])

    async def meet(self, device: DeviceInfo, incarnation: Incarnation) -> None:
        """A device was seen in the inventory: new, described anew, or not what it was."""
        record = self.ledger.records.get(device.uuid)
        orphaned = record is not None and record.job is not None and self.jobs.of(device.uuid) is None
        if orphaned or (record is not None and record.device == device):
            return  # a job whose end could not be recorded is closed first, by tend
        async with self.locks.of([device.uuid]):
            if record is None:
                policy = self.active_policy.device_policy(device).policy
                before = upkeep.history(await self._observer.vitals(device.uuid), policy)
                met: list[ev.Event] = [ev.Discovered(device, incarnation), *((before,) if before is not None else ())]
                await self.ledger.append(self._op(), *((device.uuid, event) for event in met))
                return
            record = self._known(device.uuid)  # as it is by now
            events: list[tuple[str, ev.Event]] = [(device.uuid, ev.Described(device))]
            if _substance(device, record) != _substance(record.device, record):
                await self.jobs.cancel(device.uuid)  # it works on something else
                events.append((device.uuid, ev.Distrusted("its memory or its layout is another", incarnation)))
            await self.ledger.append(self._op(), *events)

    async def try_ledger(self) -> None:
        """After a write that failed: write something that changes nothing, so that it shows when it works again."""
        record = next(iter(self.ledger.records.values()), None)
        if self.ledger.fault is not None and record is not None:
            await self.ledger.append(self._op(), (record.device.uuid, ev.Described(record.device)))

    async def bring_back(self) -> None:
        """Begin to give back what resets that were cut off still owe: a device that is gone gets no job that would."""
        for device in await self._observer.pending_restores():
            waits = self.now().uptime < self._mend_again.get(device, 0.0)
            if not (self._stopping or waits or device in self._mending):
                self._mending[device] = asyncio.create_task(self._bring_back(device))

    async def _bring_back(self, device: str) -> None:
        self._mend_again[device] = self.now().uptime + MEND_AGAIN
        try:
            result = await self.jobs.restore(device)
            if result is not None and result.outcome is not Outcome.PASSED:
                logger.warning("cannot bring back what a reset has taken", device=device, error=result.detail)
                return
            del self._mend_again[device]
            if result is not None:
                logger.info("brought back what a reset that was cut off had taken", device=device)
        except Exception:  # no worker to be had, or a fault of ours: it is told, and tried again
            logger.exception("cannot bring back what a reset has taken", device=device)
        finally:
            del self._mending[device]

    def _notice(self, device: str, vitals: Vitals) -> None:
        """Say what begins and what ends; whether it takes the device out is for the policy to say."""
        self._told(self._known(device), vitals)
        if vitals.partial:
            return
        before, self.vitals[device] = self.vitals.get(device, Vitals()), vitals
        known, told = ({sign.kind for sign in each.signs} for each in (before, vitals))
        for sign in vitals.signs:
            if sign.kind not in known:
                logger.warning("something is wrong", device=device, sign=sign.kind.value, detail=sign.detail)
        for kind in known - told:
            logger.info("it is not told any more", device=device, sign=kind.value)

    def at_rest(self, record: Record, seen: Facts) -> bool:
        """Whether what was seen calls for nothing, so that ``tend`` need not look as well. Does nothing itself."""
        device, vitals = record.device.uuid, seen.vitals
        if self._stopping or record.job is not None or self.ledger.records.get(device) is not record:
            return False
        if ownership.needs_checkpoint(record.owner, seen):
            return False
        if ownership.all_holders_hang(seen):
            return False
        if vitals is None or vitals != self.vitals.get(device) or device in self.blocked:
            return False
        device_policy = self.active_policy.device_policy(record.device)
        answer = upkeep.tend(record, self._in_company(record, seen), device_policy.policy, self.now(), chance=0.0)
        return isinstance(answer, answers.Proceed) and not self._test_due(record, device_policy)

    async def tend(self, device: str, op: str = "") -> Record | None:
        """Compare what is seen with what is recorded, and do the next sensible thing about it.

        The record, when nothing was left to be done.
        """
        if self._stopping:
            return None
        vitals = await self._observer.vitals(device, self._known(device).device.parent)
        if vitals is not None:
            self._notice(device, vitals)
        async with self.locks.of([device]):
            op = self._op(op)
            if await self._closed_orphan(device, op):
                return None
            for _ in range(ROUNDS):
                record = self._known(device)
                seen = await self._allotted(record, await self._observer.quick(record))
                seen = replace(seen, vitals=vitals, hung_since=self._hung_since(device, seen))
                device_policy = self.active_policy.device_policy(record.device)
                facts = self._in_company(record, seen)
                answer = upkeep.tend(record, facts, device_policy.policy, self.now(), self._tools.chance())
                self.blocked.pop(device, None)
                match answer:
                    case answers.Note(event):
                        await self.ledger.append(op, (device, event))
                    case answers.CancelJob():
                        if not await self.jobs.cancel_unless_resetting(device):
                            return None
                    case answers.Blocked(why):
                        self.blocked[device] = why
                        return None
                    case answers.Scrub() | answers.Probe() if (lacks := self._lacks(record.device)) is not None:
                        self.blocked[device] = f"cannot clear its memory: {lacks}"
                        return None
                    case answers.Scrub(path, trigger):
                        await self.jobs.begin(device, path, trigger, device_policy, op)
                        return None
                    case answers.Probe(path):
                        await self.jobs.begin(device, path, Trigger.PROBATION, device_policy, op)
                        return None
                    case answers.Proceed():
                        return None if await self._burn_in(record, device_policy, op) else record
            logger.error("cannot settle a device", op=op, device=device, state=self._known(device).state.value)
            return None

    def _hung_since(self, device: str, seen: Facts) -> float | None:
        """Since when nobody is on it but these, and each was found to hang whenever it was looked at."""
        known, since = self._hung.pop(device, (frozenset(), 0.0))
        if not ownership.all_holders_hang(seen):
            return None
        who = frozenset((holder.pid, holder.started) for holder in seen.holders or ())
        since = since if who <= known else self.now().uptime
        self._hung[device] = who, since
        return since

    def _in_company(self, record: Record, seen: Facts) -> Facts:
        """With what others have to do with it: whoever asked for it, and the devices beside it."""
        records = self.ledger.records.values()
        successor, resetting = presence.successor(record, records), siblings.resetting(record, records)
        wanted = self.withheld(record)
        if not (wanted or successor or resetting):
            return seen  # of most, in every round
        return replace(seen, wanted=wanted, successor=successor, domain_resetting=resetting)

    async def _burn_in(self, record: Record, device_policy: DevicePolicy, op: str) -> bool:
        """Test a device that nobody needs now; whether that was begun."""
        if not device_policy.policy.periodic.every:
            return False
        async with self._tests:  # from the look at the others to the record of what was begun
            due = self._test_due(record, device_policy)
            if due:
                await self.jobs.begin(record.device.uuid, Path.SLOW, Trigger.BURN_IN, device_policy, op)
            return due

    def _test_due(self, record: Record, device_policy: DevicePolicy) -> bool:
        if not device_policy.policy.periodic.every or self._lacks(record.device) is not None:
            return False
        return burn_in.is_due(record, self.ledger.records.values(), device_policy.policy, self.now())

    async def stop(self) -> None:
        """No more deeds; running jobs are cut off and recorded as such."""
        self._stopping = True
        mending = tuple(self._mending.values())
        for task in mending:
            task.cancel()
        await asyncio.gather(*mending, return_exceptions=True)
        await self.jobs.stop()

    async def _ask_release(self, device: str) -> answers.ReleaseAnswer:
        record = self._known(device)
        facts = await self._allotted(record, await self._observer.full(record))
        return release.decide(record, facts, self.now())

    async def _without_job(self, device: str) -> Record:
        """The record after its trial, which a person's word has overtaken, was called off."""
        if not await self.jobs.cancel_unless_resetting(device):
            raise NotReady(Reason.SCRUBBING, f"cannot reinstate {device}: it is being reset; ask again")
        return self._known(device)

    async def _settled(self, device: str, op: str) -> Record:
        """The record after what is stale about it was recorded."""
        record = self._known(device)
        stale = proof.ended_by_restart(record, await self._observer.quick(record))
        if stale is not None:
            await self.ledger.append(self._op(op), (device, stale))
        return self._known(device)

    async def _demand_free(self, record: Record) -> None:
        """Say no before a job starts when it could only fail at its first fence."""
        facts = await self._observer.full(record)
        policy = self._policy(record.device.uuid)
        if facts.holders is None:
            raise NotReady(
                Reason.NOT_PROVEN_FREE, f"cannot scrub {record.device.uuid}: cannot prove that nobody uses it"
            )
        stuck = [holder for holder in facts.holders if not leftover.terminable(holder, record, policy)]
        if stuck:
            names = ownership.holder_names(tuple(stuck))
            raise Refused(Reason.IN_USE, f"cannot scrub {record.device.uuid}: it is used by {names}; end that first")

    async def _hear(self, device: str, op: str) -> None:
        """What was reported before a person's word is no answer to it."""
        before = upkeep.errors_to_note(self._known(device).baseline, await self._observer.vitals(device))
        if before is not None:
            await self.ledger.append(self._op(op), (device, before))

    async def _closed_orphan(self, device: str, op: str) -> bool:
        """A record in SCRUBBING whose job is gone: its ledger failed under it. Close it."""
        record = self._known(device)
        if record.job is None or self.jobs.of(device) is not None:
            return False
        event = upkeep.interruption(record, "its end could not be recorded", self.now())
        await self.ledger.append(op, (device, event))
        return True


def _words(by: str, reason: str) -> str:
    return f"{by}: {reason}" if reason else by


def _substance(device: DeviceInfo, record: Record) -> tuple[object, ...]:
    """What a proof was about. The rest may be told anew without a scrub.

    With whom it is reset may change while somebody has it, when others of its board are laid out anew: it stays his.
    """
    domain = None if record.state in (State.GRANTED, State.IN_USE) else device.reset_domain
    return device.memory_bytes, device.mig, device.model, domain
