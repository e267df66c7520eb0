"""What whoever hands devices out may ask: may these go out, may a container start on them?

Rule 1: a device's lock is held from the look to the record of what was decided on it, never while waiting.
Rule 2: several devices are locked in sorted order and answered all or none.
Rule 3: nothing here is believed from a caller; callers ask, facts decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from policies.model import Policy
from scrubber.core import acquire, answers, ownership, refusals, siblings, start
from scrubber.core import events as ev
from scrubber.core.model import DeviceInfo, Facts, Grant, Moment, Record, State, Vitals
from scrubber.core.refusals import Deed
from scrubber.devices.base import DeviceError
from scrubber.ground import aio, log
from scrubber.ground.errors import InvalidRequest, NotReady, Reason, Refused
from scrubber.jobs.jobs import Jobs
from scrubber.jobs.scrub_job import ScrubJob
from scrubber.ledger.ledger import Ledger
from scrubber.node.checkpoint import CheckpointError
from scrubber.observe.observer import Observer
from scrubber.policy import ActivePolicy

logger = log.get("hooks")

Lacks = Callable[[DeviceInfo], str | None]  # what is missing to overwrite its memory, and what to do
Answer = answers.AcquireAnswer | answers.StartAnswer | answers.ReleaseAnswer
A = TypeVar("A")
YES = (answers.HandOut, answers.Defer)
GRACE = 0.5  # seconds beyond the budget before looks are given up: at its end there must still be time for one
POLL = 0.05  # seconds between looks while an owner is given time to leave
LATE = "cannot say in time whether the devices are free; ask again"
ROUNDS = 16  # notes one question may lead to; more would be a loop of ours
WITHHELD = 10.0  # seconds for which a device that was asked for in vain is not offered


@dataclass(frozen=True, slots=True)
class Tools:
    """Clock and chance, handed in so that tests own them."""

    now: Callable[[], Moment]
    token: Callable[[int], str]  # fresh hex of so many bytes
    chance: Callable[[], float]  # in [0, 1)


class Handover:
    """Who may have a device."""

    def __init__(
        self, ledger: Ledger, observer: Observer, jobs: Jobs, active_policy: ActivePolicy, tools: Tools, lacks: Lacks
    ) -> None:  # fmt: skip
        """Nothing is done yet: ``recover`` comes first."""
        self.ledger = ledger
        self.jobs = jobs
        self.locks = jobs.locks
        self.active_policy = active_policy
        self.now = tools.now
        self._observer = observer
        self._tools = tools
        self._lacks = lacks
        self.blocked: dict[str, str] = {}  # what the last look found in the way of a scrub
        self.vitals: dict[str, Vitals] = {}  # what each device said of itself at the last look that it answered
        self._withheld: dict[str, tuple[Moment, float]] = {}  # asked for in vain: its state since then, and until when
        self._stopping = False

    async def acquire(
        self, devices: Sequence[str], *, announced: bool, fresh: bool = False, op: str = ""
    ) -> dict[str, Grant | None]:
        """Grants for all of these devices, or an error and none. Waits within the policy's budget.

        Where policy leaves the wait to the announced start, there is no grant yet. ``fresh``: what somebody has is a
        no. ``op``: by which id whoever asks calls this; so it is called in the ledger and in the log.
        """
        op = self._op(op)
        began = self.now().uptime
        policies = [self._policy(device) for device in devices]
        budget = began + min(policy.budgets.allocate for policy in policies)
        patience = began + min(policy.budgets.owner_wait for policy in policies)
        joined: set[str] = set()
        missing = set(devices)
        try:
            while True:
                async with self._locked(devices, budget):
                    ask = partial(self._ask_acquire, op, announced=announced, fresh=fresh)
                    replies = await self._ask_all(devices, ask, budget)
                    refused = {device for device, answer in replies.items() if not isinstance(answer, YES)}
                    if not refused:
                        await self._start_jobs(replies, op)
                        grants = await self._grant(_handouts(replies), op, announced=announced, kept=fresh)
                        missing = set()
                        return {device: grants.get(device) for device in sorted(devices)}
                    missing = refused
                    raise_refusals(replies, joined)
                    running = await self._start_jobs(replies, op)
                joined |= {job.device for job in running}
                waiting = [answer for answer in replies.values() if isinstance(answer, answers.Wait)]
                await self._wait(running, waiting, budget, patience)
        finally:  # whatever it was, a deadline of the caller included: the same question would get the same no
            if not fresh:  # the kubelet asks otherwise, and must not lose a GPU to somebody's slip at a shell
                self._withhold(missing)

    async def start(self, devices: Sequence[str], owner: str | None, *, op: str = "") -> None:
        """A container of ``owner`` may start on all of these devices, or an error.

        Without an owner the kubelet's checkpoint says whose they are; should that change while the devices are made
        ready, whoever asked has lost them.
        """
        op = self._op(op)
        budget = self.now().uptime + min(self._policy(d).budgets.start for d in devices)
        joined: set[str] = set()
        starting_pod = owner
        while True:
            async with self._locked(devices, budget):
                holder = owner or await self._claimant(devices, op)
                if starting_pod not in (None, holder):
                    raise NotReady(
                        Reason.OWNER_UNKNOWN, "cannot start: the devices were given to another pod meanwhile"
                    )
                starting_pod = holder
                replies = await self._ask_all(devices, partial(self._ask_start, op, starting_pod), budget)
                raise_refusals(replies, joined)
                if all(isinstance(answer, (answers.Proceed, answers.Admit)) for answer in replies.values()):
                    await self._admit(replies, op)
                    return
                await self._grant(_handouts(replies), op, announced=True)
                running = await self._start_jobs(replies, op)
            joined |= {job.device for job in running}
            await self._wait(running, [], budget, budget)

    def withheld(self, record: Record) -> bool:
        """Whether it was asked for in vain lately. While somebody is on it that ends when they have left."""
        since, until = self._withheld.get(record.device.uuid, (None, 0.0))
        if since != record.since:
            return False
        return record.state is State.IN_USE or self.now().uptime < until

    async def _ask_all(
        self, devices: Sequence[str], ask: Callable[[str], Coroutine[Any, Any, A]], budget: float
    ) -> dict[str, A]:
        """All at once, so that one driver call that hangs costs its time once; an answer that is late is a no."""
        names = sorted(devices)
        self._demand_running()  # a job that was cut by the stop is no failure of its device
        try:
            async with asyncio.timeout(max(0.0, budget - self.now().uptime) + GRACE):
                if len(names) == 1:  # the usual case, at the price of no task
                    return {names[0]: await ask(names[0])}
                return dict(zip(names, await aio.together(map(ask, names)), strict=True))
        except TimeoutError:
            raise NotReady(Reason.UNRESPONSIVE, LATE) from None

    async def _ask_acquire(self, op: str, device: str, *, announced: bool, fresh: bool) -> answers.AcquireAnswer:
        """Ask until the answer is more than a note of something that has happened."""
        for _ in range(ROUNDS):
            record = self._known(device)
            seen = await self._allotted(record, await self._observer.quick(record, last=not announced))
            facts = self._with_domain(record, seen)
            policy = self._policy(record.device.uuid)
            answer = acquire.decide(record, facts, policy, self.now(), announced=announced, fresh=fresh)
            match answer:
                case answers.CancelJob():
                    if not await self.jobs.cancel_unless_resetting(device):
                        return refusals.being_reset(Deed.HAND_OUT, record)
                case answers.Note(event):
                    await self.ledger.append(op, (device, event))
                case _:
                    return answer
        return answers.Refuse(Reason.INTERNAL, f"cannot hand out {device}: it does not settle")

    async def _ask_start(self, op: str, owner: str, device: str) -> answers.StartAnswer:
        for _ in range(ROUNDS):
            record = self._known(device)
            seen = await self._allotted(record, await self._observer.full(record, starting_pod=owner))
            facts = self._with_domain(record, seen)
            answer = start.decide(record, facts, self._policy(record.device.uuid), owner, self.now())
            match answer:
                case answers.CancelJob():
                    if not await self.jobs.cancel_unless_resetting(device):
                        return refusals.final(refusals.being_reset(Deed.START_ON, record))
                case answers.Note(event):
                    await self.ledger.append(op, (device, event))
                case _:
                    return answer
        return answers.Refuse(Reason.INTERNAL, f"cannot start on {device}: it does not settle")

    def _with_domain(self, record: Record, facts: Facts) -> Facts:
        return replace(facts, domain_resetting=siblings.resetting(record, self.ledger.records.values()))

    async def _allotted(self, record: Record, seen: Facts) -> Facts:
        """With whom the kubelet has given it to, where that bears on whether its owner is one."""
        if not ownership.needs_checkpoint(record.owner, seen) or ownership.about_to_start(record.owner, self.now()):
            return seen
        device = record.device.uuid
        try:
            return replace(seen, assigned_pods=(await self._observer.owners([device]))[device])
        except (CheckpointError, DeviceError):
            return seen

    async def _claimant(self, devices: Sequence[str], op: str) -> str:
        """Whose the devices are, by the kubelet's checkpoint."""
        try:
            owners = await self._observer.owners(devices)
        except (CheckpointError, DeviceError) as error:
            logger.error("cannot tell who is about to start", op=op, devices=devices, error=str(error))  # noqa: TRY400 - expected
            why = "cannot start: the kubelet's checkpoint cannot be read, so nobody knows whose the devices are"
            raise NotReady(Reason.OWNER_UNKNOWN, why) from None
        starting_pod = start.starting_pod(owners)
        if isinstance(starting_pod, str):
            return starting_pod
        if starting_pod.reason is Reason.OWNER_AMBIGUOUS:
            told = {it: sorted(who) for it, who in owners.items()}
            logger.error("the kubelet gave a device away twice", op=op, owners=told)
        raise NotReady(starting_pod.reason, starting_pod.message)

    async def _admit(self, replies: Mapping[str, answers.StartAnswer], op: str) -> None:
        """All of them exposed in one transaction, before anything can start."""
        events = [(device, answer.event) for device, answer in replies.items() if isinstance(answer, answers.Admit)]
        if events:
            await self.ledger.append(op, *events)

    def _withhold(self, devices: Collection[str]) -> None:
        """Offer no longer what was asked for in vain: pod after pod would be tried on it, and fail."""
        until = self.now().uptime + WITHHELD
        self._withheld |= {device: (self._known(device).since, until) for device in devices}
        if devices:
            self.ledger.announce()

    async def _grant(
        self, replies: Mapping[str, answers.HandOut], op: str, *, announced: bool, kept: bool = False
    ) -> dict[str, Grant]:
        """All grants in one transaction: durable before anybody hears of them."""
        epoch, now = self._observer.epoch(), self.now()
        events: list[tuple[str, ev.Granted | ev.GrantedUnproven]] = []
        for device, answer in replies.items():
            receipt = self._known(device).receipt
            grant = Grant(self._tools.token(6), now, epoch, announced, receipt.id if receipt else None, kept)
            if answer.unproven is None:
                events.append((device, ev.Granted(grant)))
            else:
                events.append((device, ev.GrantedUnproven(replace(grant, receipt=None), answer.unproven)))
        if events:
            await self.ledger.append(op, *events)
        return {device: event.grant for device, event in events}

    async def _start_jobs(self, replies: Mapping[str, Answer], op: str) -> list[ScrubJob]:
        running = []
        for device, reply in replies.items():
            answer = reply.scrub if isinstance(reply, answers.Defer) else reply
            if isinstance(answer, answers.Scrub):
                self._demand_means(device, "hand out")
                device_policy = self.active_policy.device_policy(self._known(device).device)
                running.append(await self.jobs.begin(device, answer.path, answer.trigger, device_policy, op))
            elif isinstance(answer, answers.Join):
                job = self.jobs.of(device)
                if job is None:  # its job died with the ledger; the monitor is about to close it
                    raise NotReady(Reason.SCRUBBING, f"cannot hand out {device}: its last scrub was cut off; ask again")
                running.append(job)
        return running

    async def _wait(
        self, running: Sequence[ScrubJob], waiting: Sequence[answers.Wait], budget: float, patience: float
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

    def _demand_means(self, device: str, what: str) -> None:
        """Say no before anything is touched: all that a scrub does before the clear would be in vain."""
        if (lacks := self._lacks(self._known(device).device)) is not None:
            raise NotReady(Reason.NOT_READY, f"cannot {what} {device}: cannot clear its memory: {lacks}")

    def _known(self, device: str) -> Record:
        record = self.ledger.records.get(device)
        if record is None:
            raise InvalidRequest(f"cannot find device {device}: there is none of that name", Reason.UNKNOWN_DEVICE)
        return record

    def _policy(self, device: str) -> Policy:
        return self.active_policy.device_policy(self._known(device).device).policy

    def _op(self, given: str = "") -> str:
        """By which id what is done now is called: the caller's, where it has one."""
        self._demand_running()
        return given or self._tools.token(4)

    def _demand_running(self) -> None:
        if self._stopping:
            raise NotReady(Reason.SHUTTING_DOWN, "the scrub service is shutting down; ask again when it is back")

    @asynccontextmanager
    async def _locked(self, devices: Sequence[str], budget: float) -> AsyncIterator[None]:
        """The devices' locks, or a no in time: whoever holds one may be waiting for a driver."""
        async with AsyncExitStack() as locks:
            try:
                async with asyncio.timeout(max(0.0, budget - self.now().uptime) + GRACE):
                    await locks.enter_async_context(self.locks.of(devices))
            except TimeoutError:
                raise NotReady(Reason.UNRESPONSIVE, LATE) from None
            yield


def _handouts(replies: Mapping[str, Answer]) -> dict[str, answers.HandOut]:
    return {device: answer for device, answer in replies.items() if isinstance(answer, answers.HandOut)}


def raise_refusals(replies: Mapping[str, Answer], joined: set[str]) -> None:
    """One no is a no for all. A device whose job was waited for and that is still dirty is a no, too."""
    for device, answer in replies.items():
        if isinstance(answer, answers.Refuse):
            raise Refused(answer.reason, answer.message)
        if isinstance(answer, answers.Scrub) and device in joined:
            raise NotReady(Reason.SCRUB_FAILED, f"cannot hand out {device}: it could not be scrubbed")
