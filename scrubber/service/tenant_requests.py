"""Acquires, starts and releases devices for tenants: carries out what core answers, within a request's deadline.

A request goes through rounds. A round locks the devices, looks at each, lets core decide, and records the decision. If
the devices cannot go out yet, the round has started the scrubs that they need. The request waits, and begins the next
round.

Rule 1: a device's lock is held from the observation until the decision is recorded, never while waiting.
Rule 2: several devices are locked in sorted order. The answer is for all of them or for none.
Rule 3: the word of a caller is never believed. The observation decides.
Rule 4: the requests for one owner follow each other, so that a release misses no device that an acquire is about to
        grant.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from ground import aio, log
from ground.errors import AutoclaveError, InvalidRequest, LedgerUnavailable, NotReady, Reason, Refused
from policies.policy_model import Policy
from scrub_api.device_messages import GrantedDevice
from scrubber.core import acquire, answers, pauses, start
from scrubber.core import events as ev
from scrubber.core.acquire import ForClaim, ForJob, ForPod, Recipient
from scrubber.core.answers import Action
from scrubber.core.fencing import Pods
from scrubber.core.model import Facts, KubeletAssignment, Moment, State
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from scrubber.devices.base import DeviceError, ShortageError
from scrubber.jobs.scrub_job import ScrubJob
from scrubber.ledger.ledger import OvertakenError
from scrubber.node.assignments import AssignmentsError
from scrubber.policy import DevicePolicy
from scrubber.service.context import MAX_ROUNDS, ServiceContext
from scrubber.service.upkeep import Upkeep

logger = log.get("tenant requests")

Answer = answers.AcquireAnswer | answers.StartAnswer | answers.ReleaseAnswer
A = TypeVar("A", bound=Answer)
ACCEPTED = (answers.Proceed, answers.HandOut)
OVERRUN = 0.5  # seconds beyond a deadline: an observation that begins just before it can still finish
ON_THE_WAY = 0.1  # seconds for a request and its answer between caller and service
TOO_LATE = "cannot say in time whether the devices are free", answers.TRY_AGAIN
NO_DECISION = f"internal error: no decision after {MAX_ROUNDS} rounds"
TO_REPORT = "try again; if it stays, report it with the log of the scrub service"
# Seconds between observations while the last owner still has time to leave.
ACQUIRE_OBSERVES_EVERY = 0.05  # meanwhile no other pod of the node can start
START_OBSERVES_EVERY = 1.0  # and after each change of the device; only this container waits


@dataclass(slots=True)
class Request:
    """What a caller asks for, what applied when it asked, and what its last round has decided.

    What applied is found once, because two answers to one question can differ. But each round uses the policy that is
    in force at its moment, and so does everything that follows from its decision. The moment of a decision is that of
    its facts (``Facts.at``).
    """

    action: Action
    devices: Sequence[str]
    op: str
    epoch: str  # the run of the kubelet that was there: one that starts later did not send this request
    deadline: float  # of the event loop
    owner_deadline: float  # until then the request waits for the last owner to leave
    replies: Mapping[str, Answer] = field(default_factory=dict)  # by device: the last decision
    facts: dict[str, Facts] = field(default_factory=dict)  # by device: those of the last decision ...
    policies: dict[str, DevicePolicy] = field(default_factory=dict)  # ... and the policy in force then
    running: Sequence[ScrubJob] = ()  # the jobs that the last decisions need
    joined: dict[str, ScrubJob] = field(default_factory=dict)  # by device: the last job that it has waited for

    @property
    def waits(self) -> dict[str, answers.Wait]:
        """By device: what the request waits for, according to the last decision."""
        return {device: answer for device, answer in self.replies.items() if isinstance(answer, answers.Wait)}

    @property
    def not_accepted(self) -> set[str]:
        """The devices that the last decision does not hand out; all devices before the first decision."""
        return {device for device in self.devices if not isinstance(self.replies.get(device), ACCEPTED)}


class TenantRequests:
    """Acquire, start and release: the requests of the program that hands devices out."""

    def __init__(self, context: ServiceContext, upkeep: Upkeep) -> None:
        """``upkeep`` takes care of a device that was released."""
        self._context = context
        self._upkeep = upkeep
        self._reserved: dict[str, Moment] = {}  # by device: its last Allocate without a grant, until a start
        self._preparing: dict[str, asyncio.Task[None]] = {}  # by device
        self._owners: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def acquire(
        self, devices: Sequence[str], recipient: Recipient, *, op: str = "", within: float | None = None
    ) -> dict[str, GrantedDevice]:
        """Grant all of these devices, or raise and grant none. Waits within the policy's budget.

        ``within``: for how many seconds the caller waits, if it has a deadline of its own; the answer arrives before
        that. ``op`` is the caller's operation id for ledger and log. If a claim or a job has all of these devices
        already, the answer is its grants. Where the kernel keeps pods off, a pod gets no grant yet, as
        ``_reserve_all`` says.
        """
        if isinstance(recipient, ForPod) and recipient.announced and all(map(self._context.containers_wait, devices)):
            return self._reserve_all(devices, op)
        guard = self._context.observer.driver.guard
        if isinstance(recipient, ForJob) and recipient.group and guard is not None:
            guard.places.demand_tenant(recipient.group)
        async with self._turn_of("" if isinstance(recipient, ForPod) else recipient.owner):
            request = self._request(Action.HAND_OUT, devices, op, within)
            try:
                return await self._acquire(request, recipient)
            except Exception as error:  # not for a cancelled call, which says nothing about the devices
                # A person's failed request must not withhold a GPU from the kubelet, and a service that stops nothing.
                if not recipient.until_release and not self._context.jobs.stopping:
                    refused = request.not_accepted
                    of_disk = isinstance(error, LedgerUnavailable)  # the list shows its fault as long as that lasts
                    self._context.withhold(refused if of_disk else refused or request.devices)
                raise

    def _reserve_all(self, devices: Sequence[str], op: str) -> dict[str, GrantedDevice]:
        """Answer Allocate from the records alone: no look, no row, no lock.

        No container can use a device before ``start`` has proven it, and has written grant and owner. Raises Refused if
        one of the devices is quarantined or sick.
        """
        for device in devices:
            if (refused := acquire.reserve(self._context.record(device))) is not None:
                raise _error(refused, device)
        return {device: self._reserve(device, op) for device in devices}

    def _reserve(self, device: str, op: str) -> GrantedDevice:
        """Note the moment, and begin the scrub that the device needs."""
        context = self._context
        record, policy = context.record(device), context.device_policy(device).policy
        self._reserved[device] = context.now()
        if record.state is not State.CLEAN and device not in self._preparing:
            task = asyncio.create_task(self._prepare(device, op), name=f"prepare {device}")
            self._preparing[device] = task
            task.add_done_callback(lambda _: self._preparing.pop(device, None))
        return GrantedDevice(device, "", "", receipts=context.receipts(record, policy))

    async def _prepare(self, device: str, op: str) -> None:
        """Begin the scrub that a device needs, unless its last owner is still there."""
        request = self._request(Action.HAND_OUT, [device], op, None)
        try:
            async with self._locked(request):
                await self._decide(request, partial(self._context.observer.look, purpose=Purpose.RESERVE), _for_a_pod)
                await self._start_jobs(request)
        except AutoclaveError as error:  # the start of the container tries it, too, and says so
            logger.info("cannot prepare a device for its pod", op=request.op, device=device, error=str(error))

    async def _acquire(self, request: Request, recipient: Recipient) -> dict[str, GrantedDevice]:
        while True:
            try:
                granted = await self._try_acquire(request, recipient)
            except LedgerUnavailable as error:
                await self._until_writable(request, error)
                continue
            except OvertakenError:
                granted = None
            if granted is not None:
                return granted
            await self._wait(request)

    async def _try_acquire(self, request: Request, recipient: Recipient) -> dict[str, GrantedDevice] | None:
        """One round: grant all devices; None if the request must wait first."""
        context = self._context

        def judge(record: Record, facts: Facts, policy: Policy) -> answers.AcquireAnswer:
            return acquire.decide(record, facts, policy, facts.at, recipient)

        async with self._locked(request):
            announced = isinstance(recipient, ForPod) and recipient.announced  # then the start looks again
            purpose = Purpose.RESERVE if announced else Purpose.GRANT
            replies = await self._decide(request, lambda it: context.observer.look(it, purpose), judge)
            if (partly := acquire.partly_held(replies)) is not None:
                raise _error(partly)
            _raise_refusals(request)
            await self._start_jobs(request)
            if request.not_accepted:
                return None
            await self._record_grants(request, recipient)
            return {device: self._describe_grant(request, device) for device in replies}

    async def start(
        self,
        devices: Sequence[str],
        owner: str | None,
        *,
        op: str = "",
        within: float | None = None,
    ) -> None:
        """Return as soon as a container of ``owner`` may start on all of these devices; raise otherwise.

        Without ``owner`` the kubelet's checkpoint names the pod. If the start waits and the checkpoint then names
        another pod, the start is refused. ``within``: for how many seconds the caller waits.
        """
        request = self._request(Action.START_ON, devices, op, within)
        pod = owner
        while True:
            async with self._locked(request):
                pod, named = await self._starting_pod(request, owner, pod)
                replies = await self._decide_start(request, pod, named)
                _raise_refusals(request)
                if all(isinstance(answer, answers.Proceed | answers.Admit) for answer in replies.values()):
                    with contextlib.suppress(OvertakenError):  # then the next round looks again
                        await self._record_starts(request)
                        return
                await self._start_jobs(request)
            await self._wait(request)

    async def distrust(self, device: str, why: str, *, op: str = "", within: float | None = None) -> None:
        """End the proof of a device, as ``acquire.distrust`` says.

        Raises NotReady while the device is being scrubbed.
        """
        context, request = self._context, self._request(Action.DISTRUST, [device], op, within)
        async with self._locked(request):
            answer = acquire.distrust(context.record(device), why)
            if isinstance(answer, answers.Wait):
                raise _error(answer, device)
            if isinstance(answer, answers.RecordFirst):
                await context.ledger.append(request.op, (device, answer.event))

    async def let_in(self, owner: str, only: Pods, *, op: str = "") -> list[str]:
        """From now on, only these pods may open the devices of this owner. Returns the devices."""
        if not owner:
            raise InvalidRequest("cannot let pods in: no owner was named")
        pods = tuple(sorted(only.names))
        ledger = self._context.ledger
        async with self._turn_of(owner):
            found = [device for device, record in ledger.records.items() if record.tenancy.acquired_for(owner)]
            if not found:
                return []
            async with self._locked(self._request(Action.HAND_OUT, found, op, None)):
                tenancies = {device: ledger.records[device].tenancy for device in found}
                still = (device for device, tenancy in tenancies.items() if tenancy.acquired_for(owner))
                changed = [device for device in still if tenancies[device].claim_pods != pods]
                if changed:
                    await ledger.append(op, *((device, ev.LetIn(pods)) for device in changed))
        return found

    async def release(
        self, devices: Sequence[str] = (), *, owner: str = "", op: str = "", within: float | None = None
    ) -> tuple[str, ...]:  # fmt: skip
        """Take devices back if the observation proves that their owners have ended; raise otherwise.

        ``owner``: also raise if one of the devices was granted to another owner. Without ``devices``, release all
        devices of this owner, if there are any. Returns those that were granted or in use.
        """
        if not devices and not owner:
            raise InvalidRequest("cannot take back: no device and no owner was named")
        async with self._turn_of(owner):
            records = self._context.ledger.records
            of_owner = [device for device, record in records.items() if record.tenancy.acquired_for(owner)]
            devices = devices or of_owner
            return await self._release(self._request(Action.TAKE_BACK, devices, op, within), owner) if devices else ()

    async def _release(self, request: Request, owner: str) -> tuple[str, ...]:
        context = self._context

        async def answer(device: str) -> answers.ReleaseAnswer:
            record, facts = await context.observe(device, request.op)
            facts = request.facts[device] = await context.observer.with_kubelet(record, facts, to_take_back=True)
            return acquire.take_back(record, facts, facts.at, owner)

        async with self._locked(request):
            replies = await self._for_all(request, answer)
            _raise_refusals(request)
            released = [
                (device, answer.event) for device, answer in replies.items() if isinstance(answer, answers.RecordFirst)
            ]
            if released:
                await context.ledger.append(request.op, *released, seen=request.facts)
        for device in request.devices:
            await self._upkeep.reconcile(device, request.op)
        return tuple(device for device, _ in released)

    def _request(self, action: Action, devices: Sequence[str], op: str, within: float | None) -> Request:
        """What a caller asks for, with what applies now.

        Raises InvalidRequest if no device has this UUID. ``within``: for how many seconds the caller waits; None if it
        has no deadline. The answer must arrive before that.
        """
        context = self._context
        budgets = [context.device_policy(device).policy.budgets for device in devices]
        now, limit = asyncio.get_running_loop().time(), math.inf if within is None else within - OVERRUN - ON_THE_WAY
        budget = min(each.allocate for each in budgets)
        if action in (Action.START_ON, Action.TAKE_BACK):  # Allocate waits for neither
            budget = pauses.START_WITHIN
        deadline = now + min(limit, budget)
        waits = action is Action.HAND_OUT
        owner_deadline = now + min(limit, *(each.owner_wait for each in budgets)) if waits else deadline
        op, epoch = op or context.token(4), context.observer.epoch()
        return Request(action, devices, op, epoch, deadline, owner_deadline)

    @contextlib.asynccontextmanager
    async def _locked(self, request: Request) -> AsyncIterator[None]:
        """Hold the locks of the devices. Raises NotReady if another task keeps a lock beyond the deadline."""
        async with contextlib.AsyncExitStack() as locks:
            async with _in_time(request):
                await locks.enter_async_context(self._context.jobs.locks.of(request.devices))
            self._context.jobs.require_running()  # or a job that ``stop`` cancelled would count as a failed scrub
            yield

    @contextlib.asynccontextmanager
    async def _turn_of(self, owner: str) -> AsyncIterator[None]:
        """Wait until no other request for this owner is under way. A request without an owner does not wait."""
        if not owner:
            yield
            return
        async with self._owners.setdefault(owner, asyncio.Lock()):
            yield

    async def _for_all(self, request: Request, answer: Callable[[str], Coroutine[Any, Any, A]]) -> dict[str, A]:
        """The answers for all devices, decided concurrently: the waits for a driver that hangs do not add up."""
        names = sorted(request.devices)
        async with _in_time(request):
            if len(names) == 1:  # the usual case: needs no task
                replies = {names[0]: await answer(names[0])}
            else:
                replies = dict(zip(names, await aio.gather(map(answer, names)), strict=True))
        request.replies = replies
        return replies

    async def _decide(
        self, request: Request, look: Callable[[Record], Awaitable[Facts]],
        judge: Callable[[Record, Facts, Policy], A],
    ) -> dict[str, A | answers.Refuse]:  # fmt: skip
        """Look at all devices, and let core judge each until its answer is final.

        Before that, an event may have to be recorded or a job to be cancelled. A job that has begun its reset since the
        decision is not cancelled. The next decision joins it, because its path is due.
        """
        context = self._context

        async def decide(device: str) -> A | answers.Refuse:
            for _ in range(MAX_ROUNDS):
                record = context.ledger.records[device]
                facts = request.facts[device] = await look(record)
                request.policies[device] = context.device_policy(device)
                answer = judge(record, facts, request.policies[device].policy)
                if isinstance(answer, answers.CancelJob):
                    await context.jobs.cancel_unless_resetting(device)
                elif isinstance(answer, answers.RecordFirst):
                    await context.ledger.append(request.op, (device, answer.event), seen={device: facts})
                else:
                    return answer
            why = answers.sentence(request.action, context.ledger.records[device], NO_DECISION)
            return answers.Refuse(Reason.INTERNAL, why, (TO_REPORT,))

        return await self._for_all(request, decide)

    async def _decide_start(
        self, request: Request, pod: str, named: Mapping[str, KubeletAssignment]
    ) -> Mapping[str, answers.StartAnswer]:
        def judge(record: Record, facts: Facts, policy: Policy) -> answers.StartAnswer:
            uuid = record.device.uuid
            return start.decide(record, facts, policy, pod, facts.at, named.get(uuid), self._reserved.get(uuid))

        look = partial(self._context.observer.look, purpose=Purpose.START, starting_pod=pod)
        return await self._decide(request, look, judge)

    async def _starting_pod(
        self, request: Request, owner: str | None, before: str | None
    ) -> tuple[str, Mapping[str, KubeletAssignment]]:
        """The pod that starts; and what the kubelet's checkpoint says, unless the caller has named the pod.

        Raises NotReady if it is not the pod of the round before.
        """
        if owner:
            return owner, {}
        named = await self._assignments(request)
        pod = self._assigned_pod(request, named)
        if before not in (None, pod):
            why = "cannot start: the kubelet has given the devices to another pod since the request"
            raise NotReady(Reason.OWNER_UNKNOWN, why, start.TRIES_AGAIN)
        return pod, named

    async def _assignments(self, request: Request) -> dict[str, KubeletAssignment]:
        """What the kubelet's checkpoint says about these devices. Raises NotReady if it cannot be read."""
        try:
            return await self._context.observer.assignments(request.devices)
        except ShortageError as error:
            raise NotReady(Reason.SHORTAGE, f"cannot start: {error}", answers.TRY_AGAIN) from None
        except (AssignmentsError, DeviceError) as error:
            logger.error(  # noqa: TRY400 - expected
                "cannot find the pod that is about to start",
                op=request.op, devices=request.devices, error=str(error),
            )  # fmt: skip
            why = "cannot start: the kubelet's checkpoint, which names the owner of the devices, cannot be read"
            raise NotReady(Reason.OWNER_UNKNOWN, why, "the log of the scrub service says why") from None

    def _assigned_pod(self, request: Request, named: Mapping[str, KubeletAssignment]) -> str:
        """The one pod that the kubelet's checkpoint names for these devices.

        Raises NotReady if there is no such pod.
        """
        owners = {device: assignment.pods for device, assignment in named.items()}
        starting_pod = start.starting_pod(owners)
        if isinstance(starting_pod, str):
            return starting_pod
        if starting_pod.reason is Reason.OWNER_AMBIGUOUS:
            pods_by_device = {device: sorted(pods) for device, pods in owners.items()}
            logger.error("the kubelet's checkpoint names two pods for one device", op=request.op, owners=pods_by_device)
        raise NotReady(starting_pod.reason, starting_pod.message, *starting_pod.remedies)

    async def _record_starts(self, request: Request) -> None:
        """Record all starts, and the grants of those without one, in one transaction before any container can start."""
        events: list[tuple[str, ev.Event]] = []
        for device, answer in request.replies.items():
            if isinstance(answer, answers.Admit):
                if answer.handed_out is not None:
                    grant = self._granted(request, device, answer.handed_out, ForPod(announced=True))
                    events.append((device, replace(grant, grant=replace(grant.grant, at_start=True))))
                events.append((device, answer.event))
        if events:
            await self._context.ledger.append(request.op, *events, seen=request.facts)
        for device in request.devices:
            self._reserved.pop(device, None)

    async def _record_grants(self, request: Request, recipient: Recipient) -> None:
        """Record the grants of all devices that may be handed out, in one transaction."""
        replies = request.replies
        events: list[tuple[str, ev.Event]] = [
            (device, self._granted(request, device, answer, recipient))
            for device, answer in replies.items()
            if isinstance(answer, answers.HandOut)
        ]
        if isinstance(recipient, ForClaim):
            pods, records = tuple(sorted(recipient.pods.names)), self._context.ledger.records
            handouts = {device for device, _ in events}
            let_in = {device: records[device].tenancy.claim_pods for device in replies if device not in handouts}
            events += [(device, ev.LetIn(pods)) for device in replies if let_in.get(device) != pods]
        if events:
            await self._context.ledger.append(request.op, *events, seen=request.facts)

    def _granted(
        self, request: Request, device: str, answer: answers.HandOut, recipient: Recipient
    ) -> ev.Granted | ev.GrantedUnproven:
        context = self._context
        receipt = context.ledger.records[device].scrubs.receipt if answer.unproven is None else None
        name, receipt_id = context.token(6), receipt.id if receipt else None
        grant = acquire.grant_for(recipient, name, context.now(), request.epoch, receipt_id)
        return ev.Granted(grant) if answer.unproven is None else ev.GrantedUnproven(grant, answer.unproven)

    def _describe_grant(self, request: Request, device: str) -> GrantedDevice:
        """The grant of a device, and the directory of its receipts."""
        record, policy = self._context.ledger.records[device], request.policies[device].policy
        grant = record.tenancy.grant
        receipts = self._context.receipts(record, policy, granted=grant is not None)
        if grant is None:  # it is in use already
            return GrantedDevice(device, "", "", receipts)
        return GrantedDevice(device, grant.id, grant.receipt or "", receipts)

    async def _start_jobs(self, request: Request) -> None:
        """Start or join the jobs that the answers require."""
        context, running = self._context, list[ScrubJob]()
        for device, answer in request.replies.items():
            if isinstance(answer, answers.Scrub):
                context.require_clearable(device, f"cannot {request.action.value} {device}: ")
                policy = request.policies[device]
                running.append(await context.jobs.start(device, answer.path, answer.trigger, policy, request.op))
            elif isinstance(answer, answers.Join):
                job = context.jobs.of(device)
                if job is not None:
                    running.append(job)
                elif context.record(device).scrubs.job is not None:
                    # The job ended while the ledger could not be written; the monitor closes it soon.
                    why = f"cannot {request.action.value} {device}: its last scrub was interrupted"
                    raise NotReady(Reason.SCRUBBING, why, answers.TRY_AGAIN, device=device)
                # Otherwise the job has ended since the decision: the next round decides again.
        request.running = running
        waits = request.waits  # what is in the way may have ended the last job. When it is gone, another one may pass
        request.joined = {it.device: it for it in (*request.joined.values(), *running) if it.device not in waits}

    async def _wait(self, request: Request) -> None:
        """Return when the answers may have changed. Raises NotReady when a deadline has passed."""
        now, deadline = asyncio.get_running_loop().time(), request.deadline
        waiting, running = request.waits, request.running
        if waiting and now >= request.owner_deadline:
            device, first = next(iter(waiting.items()))
            raise _error(first, device)
        if now >= deadline and not running:
            raise NotReady(Reason.UNRESPONSIVE, *TOO_LATE)
        scrubbed = [job.device for job in running]
        if now >= deadline:
            raise _still_scrubbed(request, *scrubbed)
        if waiting and request.action is Action.START_ON:
            await self._change_of(waiting, min(START_OBSERVES_EVERY, deadline - now))
            return
        if waiting or not running:  # without a job, a record has just changed: decide again
            await asyncio.sleep(ACQUIRE_OBSERVES_EVERY if waiting else 0)
            return
        tasks = [asyncio.create_task(job.finished.wait()) for job in running]
        try:
            _, unfinished = await asyncio.wait(tasks, timeout=deadline - now)
        finally:
            for task in tasks:
                task.cancel()
        if unfinished:  # at once: one more observation could take longer than the caller waits
            raise _still_scrubbed(request, *scrubbed)

    async def _until_writable(self, request: Request, error: LedgerUnavailable) -> None:
        """Return when the ledger can be written again; raise the error if it cannot be written by the deadline."""
        ledger = self._context.ledger
        try:
            async with asyncio.timeout_at(request.deadline):
                await asyncio.sleep(ACQUIRE_OBSERVES_EVERY)
                await ledger.changed.until(lambda: ledger.fault is None)
        except TimeoutError:
            raise error from None

    async def _change_of(self, devices: Iterable[str], within: float) -> None:
        """Return when the record of one of the devices changes, or after ``within`` seconds."""
        ledger = self._context.ledger
        before = {device: ledger.records.get(device) for device in devices}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while all(ledger.records.get(device) is record for device, record in before.items()):
                    await ledger.changed.after(ledger.changed.notifications)


def _for_a_pod(record: Record, facts: Facts, policy: Policy) -> answers.AcquireAnswer:
    return acquire.decide(record, facts, policy, facts.at, ForPod(announced=True))


def _error(answer: answers.Wait | answers.Refuse, device: str = "") -> NotReady | Refused:
    kind = NotReady if isinstance(answer, answers.Wait) else Refused
    return kind(answer.reason, answer.message, *answer.remedies, device=device)


def _still_scrubbed(request: Request, *devices: str) -> NotReady:
    being = "it is" if len(devices) == 1 else "they are"
    why = f"cannot {request.action.value} {', '.join(devices)} in time: {being} being scrubbed"
    return NotReady(Reason.SCRUBBING, why, answers.TRY_AGAIN, device=devices[0] if devices else "")


@contextlib.asynccontextmanager
async def _in_time(request: Request) -> AsyncIterator[None]:
    """Raise NotReady if the block is still running a moment after the deadline.

    A block that begins after the deadline also has that moment. The error names what the request has waited for,
    because that says more than a timeout.
    """
    try:
        async with asyncio.timeout_at(max(request.deadline, asyncio.get_running_loop().time()) + OVERRUN):
            yield
    except TimeoutError:
        for device, waited in request.waits.items():
            raise _error(waited, device) from None
        for device, answer in request.replies.items():
            if isinstance(answer, answers.Scrub | answers.Join):
                raise _still_scrubbed(request, device) from None
        raise NotReady(Reason.UNRESPONSIVE, *TOO_LATE) from None


def _raise_refusals(request: Request) -> None:
    """Raise if one device is refused, or if its scrub, for which this request has waited, has failed.

    If the device needs another scrub for any other reason, the request continues to wait.
    """
    for device, answer in request.replies.items():
        if isinstance(answer, answers.Refuse):
            raise _error(answer, device)
        job = request.joined.get(device)
        if isinstance(answer, answers.Scrub) and job is not None and job.failed:
            why = f"cannot {request.action.value} {device}: its scrub failed"
            raise NotReady(
                Reason.SCRUB_FAILED, why, f"on its node, `autoclave explain {device}` says why", device=device
            )
