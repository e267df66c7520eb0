"""The use cases. Each reads as its sentence: lock, look, decide, do, record.

Rule 1: a device's lock is held from the look to the record of what was decided on it, never while waiting.
Rule 2: several devices are locked in sorted order and answered all or none.
Rule 3: nothing here is believed from a caller; callers ask, facts decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from policies.model import Policy
from scrubber import log
from scrubber.core import answers, decide, grounds, upkeep
from scrubber.core import events as ev
from scrubber.core.model import (
    Ailment,
    DeviceInfo,
    Facts,
    Grant,
    Incarnation,
    Moment,
    Path,
    Record,
    Sickness,
    State,
    Trigger,
)
from scrubber.errors import InvalidRequest, NotReady, Reason, Refused
from scrubber.jobs import Jobs, Running
from scrubber.ledger.ledger import Ledger
from scrubber.rulebook import Rulebook
from scrubber.sight import Sight

logger = log.get("service")

Answer = answers.AcquireAnswer | answers.StartAnswer | answers.ReleaseAnswer
A = TypeVar("A")
GRACE = 0.5  # seconds beyond the budget before looks are given up: at its end there must still be time for one
POLL = 0.05  # seconds between looks while an owner is given time to leave
ROUNDS = 16  # notes one question may lead to; more would be a loop of ours


@dataclass(frozen=True, slots=True)
class Tools:
    """Clock and chance, handed in so that tests own them."""

    now: Callable[[], Moment]
    token: Callable[[int], str]  # fresh hex of so many bytes
    chance: Callable[[], float]  # in [0, 1)


class Service:
    """Who may have a device, and what is done about it."""

    def __init__(self, ledger: Ledger, sight: Sight, jobs: Jobs, rulebook: Rulebook, tools: Tools) -> None:
        """Nothing is done yet: ``recover`` comes first."""
        self.ledger = ledger
        self.jobs = jobs
        self.rulebook = rulebook
        self.now = tools.now
        self._sight = sight
        self._tools = tools
        self.blocked: dict[str, str] = {}  # what the last look found in the way of a scrub
        self._stopping = False

    # -- for whoever hands devices out

    async def acquire(self, devices: Sequence[str], *, announced: bool) -> list[Grant]:
        """Grants for all of these devices, or an error and none. Waits within the policy's budget."""
        op = self._op()
        began = self.now().uptime
        policies = [self._policy(device) for device in devices]
        budget = began + min(policy.budgets.allocate for policy in policies)
        patience = began + min(policy.budgets.owner_wait for policy in policies)
        joined: set[str] = set()
        while True:
            async with self.jobs.locks.of(devices):
                replies = await self._ask_all(devices, partial(self._ask_acquire, op), budget)
                handouts = _handouts(replies)
                if len(handouts) == len(replies):
                    return await self._grant(handouts, op, announced=announced)
                _raise_refusals(replies, joined)
                running = await self._start_jobs(replies, op)
            joined |= {job.device for job in running}
            waiting = [answer for answer in replies.values() if isinstance(answer, answers.Wait)]
            await self._wait(running, waiting, budget, patience)

    async def start(self, devices: Sequence[str], owner: str) -> None:
        """A container of ``owner`` may start on all of these devices, or an error."""
        op = self._op()
        budget = self.now().uptime + min(self._policy(d).budgets.start for d in devices)
        joined: set[str] = set()
        while True:
            async with self.jobs.locks.of(devices):
                replies = await self._ask_all(devices, partial(self._ask_start, op, owner), budget)
                _raise_refusals(replies, joined)
                if all(isinstance(answer, answers.Proceed) for answer in replies.values()):
                    return
                await self._grant(_handouts(replies), op, announced=True)
                running = await self._start_jobs(replies, op)
            joined |= {job.device for job in running}
            await self._wait(running, [], budget, budget)

    async def release(self, devices: Sequence[str]) -> None:
        """The last user is gone, says the caller; believed when nobody is found."""
        op = self._op()
        budget = self.now().uptime + min(self._policy(device).budgets.allocate for device in devices)
        async with self.jobs.locks.of(devices):
            replies = await self._ask_all(devices, self._ask_release, budget)
            _raise_refusals(replies, set())
            notes = [(device, answer.event) for device, answer in replies.items() if isinstance(answer, answers.Note)]
            if notes:
                await self.ledger.append(op, *notes)
        for device in devices:
            await self.tend(device)

    # -- for operators

    async def scrub(self, device: str, path: Path | None) -> Running:
        """Start a scrub now, or join the one that runs."""
        async with self.jobs.locks.of([device]):
            await self._closed_orphan(device, self._op())
            record = self._known(device)
            running = self.jobs.of(device)
            if running is not None:
                return running
            if record.state is State.QUARANTINED:
                raise Refused(Reason.QUARANTINED, f"cannot scrub {device}: it is quarantined; use reinstate")
            record = await self._settled(device)
            if record.state in (State.GRANTED, State.EXPOSED):
                raise Refused(Reason.IN_USE, f"cannot scrub {device}: it is {record.state.value}; release it first")
            await self._demand_free(record)
            ruling = self.rulebook.ruling(record.device)
            if record.sickness is not None:
                raise Refused(Reason.SICK, f"cannot scrub {device}: it is sick and about to be quarantined")
            wanted = path or grounds.path_for(record, ruling.policy)
            return await self.jobs.begin(device, wanted, Trigger.REQUEST, ruling, self._op())

    async def quarantine(self, device: str, reason: str, by: str) -> None:
        """Take a device out by hand. In use: reported sick now, taken out when it is released."""
        async with self.jobs.locks.of([device]):
            record = self._known(device)
            sickness = Sickness(Ailment.OPERATOR, reason, sticky=True)
            event: ev.Event = ev.Sickened(replace(sickness, detail=f"{reason} (asked by {by})"))
            if record.state not in (State.GRANTED, State.EXPOSED):
                vitals = await self._sight.vitals(device)
                policy = self._policy(record.device.uuid)
                event = upkeep.confine(record, sickness, by, vitals, policy, self.now(), self._tools.chance())
            await self.ledger.append(self._op(), (device, event))
            await self.jobs.cut(device)

    async def reinstate(self, device: str, reason: str, by: str) -> Running:
        """Bring a quarantined device back by evidence: the slow path, passed."""
        async with self.jobs.locks.of([device]):
            await self._closed_orphan(device, self._op())
            running = self.jobs.of(device)
            record = self._known(device)
            if running is not None and record.quarantine is not None:
                return running
            if record.state is not State.QUARANTINED:
                raise Refused(Reason.NOT_QUARANTINED, f"cannot reinstate {device}: it is not quarantined")
            await self._demand_free(await self._settled(device))
            words = f"{by}: {reason}" if reason else by
            ruling = self.rulebook.ruling(record.device)
            return await self.jobs.begin(device, Path.SLOW, Trigger.REINSTATE, ruling, self._op(), words)

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
        async with self.jobs.locks.of([device.uuid]):
            if record is None:
                await self.ledger.append(self._op(), (device.uuid, ev.Discovered(device, incarnation)))
                return
            events: list[tuple[str, ev.Event]] = [(device.uuid, ev.Described(device))]
            if _substance(device) != _substance(record.device):
                await self.jobs.cut(device.uuid)  # it works on something else
                events.append((device.uuid, ev.Distrusted("its memory or its layout is another", incarnation)))
            await self.ledger.append(self._op(), *events)

    async def try_ledger(self) -> None:
        """After a write that failed: write something that changes nothing, so that it shows when it works again."""
        record = next(iter(self.ledger.records.values()), None)
        if self.ledger.fault is not None and record is not None:
            await self.ledger.append(self._op(), (record.device.uuid, ev.Described(record.device)))

    async def tend(self, device: str) -> None:
        """Compare what is seen with what is recorded, and do the next sensible thing about it."""
        if self._stopping:
            return
        vitals = await self._sight.vitals(device)
        async with self.jobs.locks.of([device]):
            op = self._op()
            if await self._closed_orphan(device, op):
                return
            for _ in range(ROUNDS):
                record = self._known(device)
                facts = self._with_domain(record, replace(await self._sight.quick(record), vitals=vitals))
                ruling = self.rulebook.ruling(record.device)
                answer = upkeep.tend(record, facts, ruling.policy, self.now(), self._tools.chance())
                self.blocked.pop(device, None)
                match answer:
                    case answers.Note(event):
                        await self.ledger.append(op, (device, event))
                    case answers.Blocked(why):
                        self.blocked[device] = why
                        return
                    case answers.Scrub(path, trigger):
                        await self.jobs.begin(device, path, trigger, ruling, op)
                        return
                    case answers.Probe():
                        await self.jobs.begin(device, Path.SLOW, Trigger.PROBATION, ruling, op)
                        return
                    case answers.Proceed():
                        return
            logger.error("cannot settle a device", op=op, device=device, state=self._known(device).state.value)

    async def stop(self) -> None:
        """No more deeds; running jobs are cut off and recorded as such."""
        self._stopping = True
        await self.jobs.stop()

    # -- the same few moves

    def _known(self, device: str) -> Record:
        record = self.ledger.records.get(device)
        if record is None:
            raise InvalidRequest(f"cannot find device {device}: there is none of that name", Reason.UNKNOWN_DEVICE)
        return record

    def _policy(self, device: str) -> Policy:
        return self.rulebook.ruling(self._known(device).device).policy

    def _op(self) -> str:
        if self._stopping:
            raise NotReady(Reason.SHUTTING_DOWN, "the scrub service is shutting down; ask again when it is back")
        return self._tools.token(4)

    async def _ask_all(self, devices: Sequence[str], ask: Callable[[str], Awaitable[A]], budget: float) -> dict[str, A]:
        """All at once, so that one driver call that hangs costs its time once; an answer that is late is a no."""
        names = sorted(devices)
        try:
            async with asyncio.timeout(max(0.0, budget - self.now().uptime) + GRACE):
                return dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))
        except TimeoutError:
            raise NotReady(Reason.TIMED_OUT, "cannot say in time whether the devices are free; ask again") from None

    async def _ask_acquire(self, op: str, device: str) -> answers.AcquireAnswer:
        """Ask until the answer is more than a note of something that has happened."""
        for _ in range(ROUNDS):
            record = self._known(device)
            facts = self._with_domain(record, await self._sight.quick(record))
            answer = decide.acquire(record, facts, self._policy(record.device.uuid), self.now())
            if not isinstance(answer, answers.Note):
                return answer
            await self.ledger.append(op, (device, answer.event))
        return answers.Refuse(Reason.INTERNAL, f"cannot hand out {device}: it does not settle")

    async def _ask_start(self, op: str, owner: str, device: str) -> answers.StartAnswer:
        for _ in range(ROUNDS):
            record = self._known(device)
            facts = self._with_domain(record, await self._sight.full(record))
            answer = decide.start(record, facts, self._policy(record.device.uuid), owner, self.now())
            if not isinstance(answer, answers.Note):
                return answer
            await self.ledger.append(op, (device, answer.event))
        return answers.Refuse(Reason.INTERNAL, f"cannot start on {device}: it does not settle")

    def _with_domain(self, record: Record, facts: Facts) -> Facts:
        return replace(facts, domain_resetting=grounds.resetting(record, self.ledger.records.values()))

    async def _ask_release(self, device: str) -> answers.ReleaseAnswer:
        record = self._known(device)
        return decide.release(record, await self._sight.full(record))

    async def _grant(self, replies: Mapping[str, answers.HandOut], op: str, *, announced: bool) -> list[Grant]:
        """All grants in one transaction: durable before anybody hears of them."""
        epoch, now = self._sight.epoch(), self.now()
        events: list[tuple[str, ev.Granted | ev.GrantedUnproven]] = []
        for device, answer in replies.items():
            receipt = self._known(device).receipt
            grant = Grant(self._tools.token(6), now, epoch, announced, receipt.id if receipt else None)
            if answer.unproven is None:
                events.append((device, ev.Granted(grant)))
            else:
                events.append((device, ev.GrantedUnproven(replace(grant, receipt=None), answer.unproven)))
        if events:
            await self.ledger.append(op, *events)
        return [event.grant for _, event in events]

    async def _start_jobs(self, replies: Mapping[str, Answer], op: str) -> list[Running]:
        running = []
        for device, answer in replies.items():
            if isinstance(answer, answers.Scrub):
                ruling = self.rulebook.ruling(self._known(device).device)
                running.append(await self.jobs.begin(device, answer.path, answer.trigger, ruling, op))
            elif isinstance(answer, answers.Join):
                job = self.jobs.of(device)
                if job is None:  # its job died with the ledger; the monitor is about to close it
                    raise NotReady(Reason.SCRUBBING, f"cannot hand out {device}: its last scrub was cut off; ask again")
                running.append(job)
        return running

    async def _wait(
        self, running: Sequence[Running], waiting: Sequence[answers.Wait], budget: float, patience: float
    ) -> None:
        """Until something may have changed; over the limit, the answer is not now."""
        now = self.now().uptime
        if waiting and now >= patience:
            raise NotReady(waiting[0].reason, waiting[0].message)
        if now >= budget:
            names = ", ".join(job.device for job in running)
            raise NotReady(Reason.SCRUBBING, f"cannot hand out {names} in time: it is being scrubbed; ask again")
        if waiting or not running:  # nothing to wait for: what was noted just now has changed the question
            await asyncio.sleep(POLL if waiting else 0)
            return
        tasks = [asyncio.create_task(job.finished.wait()) for job in running]
        try:
            await asyncio.wait(tasks, timeout=budget - now)
        finally:
            for task in tasks:
                task.cancel()

    async def _settled(self, device: str) -> Record:
        """The record after what is stale about it was recorded."""
        record = self._known(device)
        stale = grounds.distrust(record, await self._sight.quick(record))
        if stale is not None:
            await self.ledger.append(self._op(), (device, stale))
        return self._known(device)

    async def _demand_free(self, record: Record) -> None:
        """Say no before a job starts when it could only fail at its first fence."""
        facts = await self._sight.full(record)
        policy = self._policy(record.device.uuid)
        if facts.holders is None:
            raise NotReady(
                Reason.NOT_PROVEN_FREE, f"cannot scrub {record.device.uuid}: cannot prove that nobody uses it"
            )
        stuck = [holder for holder in facts.holders if not grounds.terminable(holder, record, policy)]
        if stuck:
            names = ", ".join(f"{h.command} (pid {h.pid}, {h.container or 'no container'})" for h in stuck)
            raise Refused(Reason.IN_USE, f"cannot scrub {record.device.uuid}: it is used by {names}; end that first")

    async def _closed_orphan(self, device: str, op: str) -> bool:
        """A record in SCRUBBING whose job is gone: its ledger failed under it. Close it."""
        record = self._known(device)
        if record.job is None or self.jobs.of(device) is not None:
            return False
        event = upkeep.interruption(record, "its end could not be recorded", self.now())
        await self.ledger.append(op, (device, event))
        return True


def _handouts(replies: Mapping[str, Answer]) -> dict[str, answers.HandOut]:
    return {device: answer for device, answer in replies.items() if isinstance(answer, answers.HandOut)}


def _raise_refusals(replies: Mapping[str, Answer], joined: set[str]) -> None:
    """One no is a no for all. A device whose job was waited for and that is still dirty is a no, too."""
    for device, answer in replies.items():
        if isinstance(answer, answers.Refuse):
            raise Refused(answer.reason, answer.message)
        if isinstance(answer, answers.Scrub) and device in joined:
            raise NotReady(Reason.SCRUB_FAILED, f"cannot hand out {device}: it could not be scrubbed")


def _substance(device: DeviceInfo) -> tuple[object, ...]:
    """What a proof was about. The rest may be told anew without a scrub."""
    return device.memory_bytes, device.mig, device.model, device.reset_domain
