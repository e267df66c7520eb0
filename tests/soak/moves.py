"""What may happen to a node of the campaign: each move takes its choices from its dice, and says what came of it."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import signal
import uuid as uuids
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path

import grpc.aio
from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from demo.installation import RESOURCE
from demo.programs import ServiceProgram
from demo.stage import halfway
from demo.standins.kubelet import NotRunning
from demo.standins.pods import Phase, Pod
from ground.errors import NotReady, Refused, Unreachable
from plugin.kubelet_api import deviceplugin_pb2 as wire
from scrub_api import views
from scrubber.devices.simulated import drills
from scrubber.devices.simulated.layout import Resetting
from scrubber.ledger import database, ledger_rows
from scrubber.node import assignments
from tests.flows.node import Node
from tests.soak.guests import Guest
from tests.soak.hostile import BRIEF_USER, FOREIGN, LEFTOVER, uptime
from tests.soak.judge import SLOW, Judge
from tests.soak.pods import Pods

ACTING = ("holds", "moves", "forks", "maps", "sends")
HOLDING = (*ACTING, "registers", "stops")
DEEDS = ("reads", "writes", "silent")
PATIENCE = 2.0  # seconds that a leftover waits for a pod that it is left by
LIFE = 5.0  # seconds that a leftover waits for the end of that pod
STREAMS = 100
FORMER, TRIES = 3, 4  # pods that had a GPU lately; times that somebody opens it
NOTICED_WITHIN = 5.0  # seconds
RESETS_FOR = 45.0  # seconds at most: the move ends the reset; less than a reset may take
ENDS_WITHIN = 30.0  # seconds: a scrub that somebody disturbs, on a busy machine too
PASSING, CONTAINED = "comes and goes", "stays, in a container that nobody announced"
MANNERS = (PASSING, CONTAINED, "stays")  # what a process does in the middle of a clear
BEFORE_CLEAR = "comes between evict and clear, and stays"
BEFORE_ITS_CLEAR = "asked in the group of a pod that has ended, before the clear"
HOOKS = ("Allocate", "PreStartContainer", "GetPreferredAllocation")
# How often each comes in a short history about one thing.
WIPES = {"before_clear": 2, "in_clear": 2, "host_process": 1}
ASKS = {"pod": 10, "asks": 8, "asks_early": 4, "asks_while_away": 2, "flood": 2}


class Moves:
    """All moves of one history."""

    def __init__(self, node: Node, pods: Pods, judge: Judge, copy: Path) -> None:
        """``copy``: a directory for copies."""
        self.written: set[str] = set()  # GPUs that an attacker may have written to while they were scrubbed
        self._node, self._pods, self._judge, self._copy = node, pods, judge, copy
        self._stage, self._kubelet, self._runtime = node.stage, node.kubelet, judge.runtime
        self._taken: set[str] = set()  # GPUs that a process of the host has open
        self._busy = {name: asyncio.Lock() for name in ("service", "plugin", "kubelet")}

    async def make(self, name: str, dice: random.Random) -> str:
        """Make a move by its name in ``tests/move_table.py``, and return its result in words."""
        move: Callable[[random.Random], Coroutine[None, None, str]] = getattr(self, f"_{name}")
        try:
            return await move(dice)
        except Unreachable:
            return "the service is away"

    def slow(self) -> str | None:
        """The exception for a refusal while something beside the campaign makes the search of /proc slow."""
        return SLOW if "reading all processes takes too long" in self._stage.service.log.read_text() else None

    async def _pod(self, dice: random.Random) -> str:
        pod = await self._pods.come(dice)
        if pod is None:
            return "no room"
        starts = sum(it.starts for it in pod.statuses.values())
        if self._pods.calm and (pod.phase is Phase.FAILED or not starts):
            self._judge.take(f"{pod.name} was refused in calm: {pod.status} {pod.statuses}", self.slow())
        return f"{pod.name}: {pod.phase.value}, {starts} starts {pod.message}"

    async def _leftover(self, dice: random.Random) -> str:
        manner, deed = dice.choice((*HOLDING, "grows")), dice.choice(DEEDS)
        patience = dice.uniform(0.3, 3)
        try:
            await self._kubelet.until(self._runtime.running, PATIENCE)
        except TimeoutError:
            return "no pod runs"
        key = dice.choice(self._runtime.running())
        gpus = self._runtime.gpus(*key)
        if not gpus:
            return "the container has just ended"
        gpu = dice.choice(gpus)
        attacker = await self._runtime.attack(LEFTOVER, gpu, manner, deed, key[0])
        if attacker is None:
            return f"{manner}: it did not start"
        with suppress(TimeoutError):
            await self._kubelet.until(lambda: not self._runtime.lives(*key), LIFE)
        attacker.begin()
        await asyncio.sleep(patience)
        ended = "still there" if attacker.lives() else "ended by the service"
        await attacker.end()
        return f"{manner}, {deed}, of {self._runtime.names[key[0]]} on {gpu}: {ended}"

    async def _foreign(self, dice: random.Random) -> str:
        manner, deed = dice.choice((*ACTING, "sends", "sends")), dice.choice((*DEEDS, "writes", "writes"))
        return await self._from_outside(FOREIGN, manner, deed, dice.uniform(3.2, 5), dice)

    async def _comes_and_goes(self, dice: random.Random) -> str:
        deed, stay = dice.choice(DEEDS), dice.choice((0.002, 0.02, 0.1))
        return await self._from_outside(BRIEF_USER, "comes_and_goes", deed, dice.uniform(0.3, 2), dice, stay)

    async def _from_outside(
        self, kind: str, manner: str, deed: str, seconds: float, dice: random.Random, stay: float = 0.0
    ) -> str:
        """Attack a GPU that no pod uses."""
        free = self._free()
        if not free:
            return "no GPU is free"
        gpu = dice.choice(free)
        attacker = await self._runtime.attack(kind, gpu, manner, deed, stay=stay)
        if attacker is None:
            return f"{manner}: it did not start"
        self.written.add(gpu)
        attacker.begin()
        await asyncio.sleep(seconds)
        await attacker.end()
        return f"{manner}, {deed}, on {gpu} for {seconds:.1f} s"

    def _free(self) -> list[str]:
        """GPUs that no pod and no process of the host uses."""
        used = {gpu for key in self._runtime.running() for gpu in self._runtime.gpus(*key)}
        return [gpu for gpu in self._stage.uuids if gpu not in used | self._taken]

    async def _asks(self, dice: random.Random) -> str:
        gpu, tried = dice.choice(self._stage.uuids), list[str]()
        for pause in [dice.uniform(0, 1) for _ in range(TRIES)]:
            await asyncio.sleep(pause)
            there = {key[0] for key in self._runtime.running()} | set(self._kubelet.pods)
            freed, ended = self._runtime.freed(gpu), self._runtime.ended
            former = [it for it in self._runtime.had[gpu][-FORMER:] if it not in there and ended.get(it, freed) < freed]
            pod = dice.choice((*former, ""))
            opened = await self._runtime.open_and_close(gpu, pod)
            tried.append(f"{self._runtime.names[pod] if pod else 'the host'}: {opened}")
        return f"on {gpu}: {', '.join(tried)}"

    async def _flood(self, dice: random.Random) -> str:
        gpu, seconds = dice.choice(self._stage.uuids), dice.uniform(1, 4)
        opened = await self._runtime.flood(gpu, seconds)
        return f"on {gpu} for {seconds:.1f} s: {'opened' if opened else 'kept off'}"

    async def _asks_early(self, dice: random.Random) -> str:
        """Between Allocate and PreStartContainer a GPU is nobody's, also not of the pod that will have it."""
        pod, early = Pod.of(f"early-{len(self._runtime.names)}", {RESOURCE: 1}), dice.random() < 0.5
        self._runtime.names[pod.uid] = pod.name
        if not await self._pods.placed(pod):
            return "no room"
        try:
            async with self._busy["kubelet"], self._busy["plugin"]:
                await self._kubelet.admit(pod)
                if pod.phase is Phase.FAILED:
                    return f"refused: {pod.message}"
                [gpu] = self._kubelet.held(pod)["main"][RESOURCE]
                opened = await self._runtime.open_and_close(gpu, pod.uid if early else "")
            await self._pods.through(pod, dice)
        except NotRunning:
            return "the kubelet ended"
        finally:
            await self._pods.forget(pod)
        return f"on {gpu}, {pod.name if early else 'of the host'}: {opened}; {pod.phase.value}"

    async def _asks_late(self, dice: random.Random) -> str:
        """Between the end of a pod and the clear, its GPU is nobody's, also not of a process in the group of the pod.

        By chance this would hardly ever come about: so the scrub waits for the end of a reset of another GPU.
        """
        pod = Pod.of(f"late-{len(self._runtime.names)}", {RESOURCE: 1})
        self._runtime.names[pod.uid] = pod.name
        if not await self._pods.placed(pod):
            return "no room"
        try:
            async with AsyncExitStack() as over:
                for program in ("service", "kubelet", "plugin"):
                    await over.enter_async_context(self._busy[program])
                await self._kubelet.run(pod)
                if pod.phase is not Phase.RUNNING:
                    return f"it does not run: {pod.message}"
                [gpu] = self._kubelet.held(pod)["main"][RESOURCE]
                other, _ = await over.enter_async_context(self._clean_gpu(dice))
                if not other or self._is_held(other):
                    return "no other GPU is free and clean"
                drills.break_reset(self._stage.simulated, other, Resetting.SLOW, RESETS_FOR)
                over.callback(drills.heal, self._stage.simulated, other)
                if not await self._scrub_until(other, "reset", lambda it: it.step == "reset"):
                    return "the reset did not begin"
                await self._kubelet.delete(pod)
                device = await self._stage.settled(self._stage.uuids.index(gpu), _waits, ENDS_WITHIN)
                if not _waits(device):
                    return "its clear did not wait for the reset"
                opened = await self._runtime.open_and_close(gpu, pod.uid)
                self._pods.counters.came[BEFORE_ITS_CLEAR] += 1
        except NotRunning:
            return "the kubelet ended"
        finally:
            await self._pods.forget(pod)
        return f"on {gpu}, {pod.name}: {opened}"

    async def _asks_while_away(self, dice: random.Random) -> str:
        """The kernel counts, or refuses."""
        async with self._clean_gpu(dice) as (gpu, _):
            if not gpu or self._is_held(gpu):
                return "no GPU is free and clean"
            async with self._down("service", signal.SIGKILL):
                opened = await self._runtime.open_and_close(gpu)
            return f"on {gpu}: {opened}"

    async def _host_process(self, dice: random.Random) -> str:
        """Once the service has noticed, neither the process nor its bytes may go."""
        uid, seconds = str(uuids.UUID(int=dice.getrandbits(128))), dice.uniform(0.2, 3.0)
        then = dice.choice(("nothing", "order", "service_end"))  # at which a scrub might begin under it
        async with self._clean_gpu(dice) as (gpu, before):
            if not gpu:
                return "no GPU is free and clean"
            async with self._runtime.host_process(uid, gpu) as guest:
                if guest is None or not await self._noticed(gpu, before):
                    return "it was not noticed, or a pod came"
                await self._write(guest, uid, gpu)
                if then == "order":
                    await self._scrub(gpu, dice.choice(("fast", "slow")))
                elif then == "service_end":
                    await self._service_end(dice)
                await asyncio.sleep(seconds)
        return f"on {gpu} for {seconds:.1f} s, then {then}"

    async def _in_clear(self, dice: random.Random) -> str:
        """That scrub proves nothing, and ends under whoever stays.

        By chance this would hardly ever come about: a clear takes less than a millisecond. So it stands still.
        """
        manner, seconds = dice.choice(MANNERS), dice.uniform(0.2, 1.0)
        async with self._busy["service"], self._clean_gpu(dice) as (gpu, before):
            if not gpu or self._is_held(gpu):
                return "no GPU is free and clean"
            drills.stall_clears(self._stage.simulated, gpu)
            try:
                async with self._stage.admin() as admin:
                    [job] = [it.job async for it in admin.scrub([gpu], path="fast", no_wait=True)]
                device = await self._stage.settled(self._stage.uuids.index(gpu), halfway, NOTICED_WITHIN)
                if device.job is None or device.job.id != job or not halfway(device):
                    return "a pod came, or the clear did not"
                self._pods.counters.came[f"in a clear, it {manner}"] += 1
                if manner == PASSING:
                    came = await self._runtime.open_and_close(gpu)
                else:
                    came = await self._stay(gpu, job, before, manner, seconds)
            finally:
                drills.heal(self._stage.simulated, gpu)
            await self._stage.settled(self._stage.uuids.index(gpu), lambda it: not _runs(it, job), ENDS_WITHIN)
            if came and any(row.kind == "scrub-passed" and job in row.body for row in self._rows_of(gpu, before)):
                self._judge.take(f"{gpu} is called clean by a scrub in which a process {manner}", None)
        return f"on {gpu}: it {manner}"

    async def _before_clear(self, dice: random.Random) -> str:
        """Somebody writes there, after evict has found nobody: the clear must not begin.

        By chance this would hardly ever come about: from evict to clear it takes milliseconds. So the scrub waits in
        between, for the end of a reset of another GPU.
        """
        contained, seconds = dice.random() < 0.5, dice.uniform(0.1, 0.5)
        async with self._busy["service"], self._clean_gpu(dice) as (other, _), self._clean_gpu(dice) as (gpu, _):
            if not (other and gpu) or self._is_held(other) or self._is_held(gpu):
                return "no two GPUs are free and clean"
            drills.break_reset(self._stage.simulated, other, Resetting.SLOW, RESETS_FOR)
            try:
                resets = await self._scrub_until(other, "reset", lambda it: it.step == "reset")
                job = resets and await self._scrub_until(gpu, "fast", lambda it: it.queue_place is not None)
                if not job:
                    return "the reset did not begin, or the clear did not wait for it"
                async with self._unasked(gpu, contained=contained, deeds="write tell watch") as (guest, _):
                    if guest is None:
                        return "it did not start"
                    guest.may_be_killed = False
                    drills.heal(self._stage.simulated, other)
                    await self._stage.settled(self._stage.uuids.index(gpu), lambda it: not _runs(it, job), ENDS_WITHIN)
                    self._pods.counters.came[BEFORE_CLEAR] += 1
                    await asyncio.sleep(seconds)
                return f"on {gpu}, {'in a container' if contained else 'of the host'}"
            finally:
                drills.heal(self._stage.simulated, other)

    async def _scrub_until(self, gpu: str, path: str, wanted: Callable[[views.JobStatus], bool]) -> str:
        """Begin a scrub, and return its id once it is where it is wanted; empty if that does not come about."""
        try:
            async with self._stage.admin() as admin:
                [job] = [it.job async for it in admin.scrub([gpu], path=path, no_wait=True)]
        except (Refused, NotReady):
            return ""
        number = self._stage.uuids.index(gpu)
        device = await self._stage.settled(number, lambda it: not _runs(it, job) or _at(it, wanted), ENDS_WITHIN)
        return job if _runs(device, job) and _at(device, wanted) else ""

    @asynccontextmanager
    async def _unasked(
        self, gpu: str, *, contained: bool, deeds: str = "tell wait write watch"
    ) -> AsyncIterator[tuple[Guest | None, str]]:
        """A process that nobody announced has a GPU open, in a container or in none. With its name."""
        pod = Pod.of(f"unasked-{len(self._runtime.names)}", {RESOURCE: 1})
        self._runtime.names[pod.uid] = pod.name
        if contained:
            await self._runtime.open_sandbox(pod)
        self._may_stay(pod.uid)
        try:
            async with self._runtime.host_process(pod.uid, gpu, pod.uid if contained else "", deeds) as guest:
                yield guest, pod.uid
        finally:
            if contained:
                await self._runtime.close_sandbox(pod)

    async def _claim(self, dice: random.Random) -> str:
        """Its container starts without a question, onto empty memory."""
        claim, pod = str(uuids.UUID(int=dice.getrandbits(128))), Pod.of(f"claimed-{len(self._runtime.names)}", {})
        pauses = [dice.uniform(0, most) for most in (0.3, 1.0)]
        async with AsyncExitStack() as over, self._stage.scrubber() as scrubber:
            await over.enter_async_context(self._busy["service"])
            gpu, _ = await over.enter_async_context(self._clean_gpu(dice))
            if not gpu or self._is_held(gpu):
                return "no GPU is free and clean"
            over.enter_context(self._runtime.open_to_all([gpu]))
            try:
                await scrubber.acquire([gpu], exclusive=True, owner=claim)
            except (Refused, NotReady) as error:
                return f"no claim has it: {error}"
            try:
                await asyncio.sleep(pauses[0])
                await self._start_of_claim(gpu, pod, pauses[1])
                return f"on {gpu}"
            finally:
                await scrubber.release(owner=claim)

    async def _start_of_claim(self, gpu: str, pod: Pod, seconds: float) -> None:
        """The container runtime asks nobody before it creates a container of a claim."""
        await self._runtime.open_sandbox(pod)
        try:
            self._judge.claimed.add(pod.uid)
            await self._runtime.late(pod, [gpu], seconds)
        finally:
            await self._runtime.close_sandbox(pod)

    async def _stay(self, gpu: str, job: str, before: int, manner: str, seconds: float) -> bool:
        """Write once the scrub has ended. One that does not end shows what it does to those bytes. Whether it came."""
        async with self._unasked(gpu, contained=manner == CONTAINED) as (guest, uid):
            if guest is None:
                return False
            number = self._stage.uuids.index(gpu)
            await self._stage.settled(number, lambda it: not _runs(it, job), ENDS_WITHIN)
            rows = {row.kind for row in self._rows_of(gpu, before)}
            if "scrub-passed" not in rows:  # else another move has let the clear go on
                await self._write(guest, uid, gpu)
                drills.heal(self._stage.simulated, gpu)
                await asyncio.sleep(seconds)
            return True

    async def _write(self, guest: Guest, uid: str, gpu: str) -> None:
        """From now on nobody may end the process, nor overwrite what it has written."""
        self._may_stay(uid)
        await self._runtime.write(guest, uid, gpu)

    def _may_stay(self, uid: str) -> None:
        """The judge excuses nothing that is done to this process from now on."""
        self._runtime.entered[uid] = uptime()
        self._judge.noticed.add(uid)

    @asynccontextmanager
    async def _clean_gpu(self, dice: random.Random) -> AsyncIterator[tuple[str, int]]:
        """A clean GPU for one process alone, and the number of rows in the ledger; an empty name if there is none."""
        attacked = {it.gpu for it in self._runtime.attackers if it.lives()}
        free = [it for it in self._free() if it not in attacked]
        gpu = dice.choice(free) if free else ""
        self._taken.add(gpu)
        try:
            rows = await self._rows_if_clean(gpu) if gpu else None
            yield (gpu, rows) if rows is not None else ("", 0)
        finally:
            self._taken.discard(gpu)

    async def _rows_if_clean(self, gpu: str) -> int | None:
        """The number of rows in the ledger while the GPU is clean."""
        async with self._stage.admin() as admin:
            status = await admin.status([gpu])
        return status.service.ledger_rows if status.devices[0].state == "clean" else None

    async def _noticed(self, gpu: str, before: int) -> bool:
        """Whether the GPU is dirty without a scrub, and had no owner since it was clean.

        If it had one, the process counts as a leftover, and the service ends it.
        """
        device = await self._stage.settled(self._stage.uuids.index(gpu), _left_alone, NOTICED_WITHIN)
        since = {row.kind for row in self._rows_of(gpu, before)}
        return _left_alone(device) and not {"granted", "in-use"} & since and not self._is_held(gpu)

    def _rows_of(self, gpu: str, before: int) -> list[ledger_rows.LedgerRow]:
        """The rows of a GPU after so many rows of the ledger."""
        with closing(database.connect(self._stage.ledger, "mode=ro")) as connection:
            return [row for row in database.rows(connection, before + 1) if row.device == gpu]

    def _is_held(self, gpu: str) -> bool:
        """Whether a pod has the GPU, as far as the kubelet remembers; a dead kubelet remembers nothing."""
        try:
            held = [self._kubelet.held(pod) for pod in self._kubelet.pods.values()]
        except NotRunning:
            return True
        return any(gpu in ids for of in held for resources in of.values() for ids in resources.values())

    async def _importer(self, dice: random.Random) -> str:
        """As after cudaIpcOpenMemHandle."""
        running = self._runtime.running()
        pairs = [(key, other[0]) for key in running for other in running if other[0] != key[0]]
        if not pairs:
            return "no two pods run"
        key, other = dice.choice(pairs)
        async with self._runtime.importer(key, other) as came:
            await asyncio.sleep(dice.uniform(0.1, 2))
        return f"of {self._runtime.names[other]} at {self._runtime.names[key[0]]}: {came}"

    async def _doubled(self, dice: random.Random) -> str:
        first, second = (Pod.of(f"{which}-{len(self._runtime.names)}", {RESOURCE: 1}) for which in ("dropped", "next"))
        late, soon = dice.choice(((0.2, 1.0), (0.2, 1.0), (1.5, 0.1)))  # which start comes first
        pauses = [dice.uniform(0, most) for most in (0.5, late, 0.05, 0.5, soon)]
        self._runtime.names.update({it.uid: it.name for it in (first, second)})
        if not await self._pods.placed(second):
            return "no room"
        try:
            await self._kubelet.admit(first)
            if first.phase is Phase.FAILED:
                await self._kubelet.delete(first)
                return f"refused: {first.message}"
            ids = self._kubelet.held(first)["main"][RESOURCE]
            self._judge.late[first.uid] = {gpu: len(self._runtime.had[gpu]) for gpu in ids}
            await self._kubelet.force_delete(first)
            await asyncio.sleep(pauses[0])
            await self._kubelet.admit(second)
            async with asyncio.TaskGroup() as both:
                came = both.create_task(self._late_start(first, ids, pauses[1:4]))
                await asyncio.sleep(pauses[4])
                both.create_task(self._pods.through(second, dice))
        except NotRunning:
            return "the kubelet ended"
        finally:
            await self._pods.forget(first, second)
        return f"{came.result()}; {second.phase.value}: {second.message or second.statuses['main']}"

    async def _late_start(self, pod: Pod, ids: Sequence[str], pauses: Sequence[float]) -> str:
        await asyncio.sleep(pauses[0])
        await self._runtime.open_sandbox(pod)
        try:
            async with self._node.door() as plugin:
                await plugin.PreStartContainer(wire.PreStartContainerRequest(devices_ids=ids), timeout=30)
            await asyncio.sleep(pauses[1])
            await self._runtime.late(pod, ids, pauses[2])
        except grpc.aio.AioRpcError as error:
            return f"the late start is refused: {error.details()}"
        finally:
            await self._runtime.close_sandbox(pod)
        return f"the late start came, for {pauses[2]:.2f} s"

    async def _kubelet_restart(self, dice: random.Random) -> str:
        old, lost, late = dice.random() < 0.25, dice.random() < 0.15, dice.random() < 0.5
        pause, waits = dice.uniform(0, 0.4), dice.uniform(0, 0.5)
        async with AsyncExitStack() as over, self._busy["kubelet"]:
            await self._moment(dice)
            if late:  # the plugin registers late: meanwhile containers start without a question
                await over.enter_async_context(self._busy["plugin"])
                await over.enter_async_context(self._stopped(self._stage.plugin))
            self._pods.kubelet_runs.clear()
            await self._kubelet.kill()
            if old:
                self._put_back_checkpoint()
            elif lost:
                self._damage(dice)
            await asyncio.sleep(pause)
            await self._kubelet.start()
            with suppress(TimeoutError):  # after that its pods are admitted again, whether the plugin is back or not
                await self._kubelet.registered(RESOURCE, waits)
            self._pods.kubelet_runs.set()
            self._pods.shake()
            await asyncio.sleep(pause * late)
        checkpoint_is = "an old checkpoint" if old else "a damaged checkpoint" if lost else "its checkpoint"
        return f"with {checkpoint_is}{', without the plugin' * late}"

    async def _stale(self, dice: random.Random) -> str:
        """The file is an older one until the kubelet writes it again. Its time is that of the older one, too."""
        if dice.random() < 0.3:
            self._damage(dice)
            return "damaged"
        self._put_back_checkpoint()
        return "an older checkpoint"

    async def _keep(self, dice: random.Random) -> str:  # noqa: ARG002 - a move
        async with self._busy["service"], self._stopped(self._stage.service):
            shutil.rmtree(self._copy, ignore_errors=True)
            self._copy.mkdir()
            shutil.copytree(self._stage.root / "state", self._copy / "state", ignore=shutil.ignore_patterns("*.lock"))
            with suppress(FileNotFoundError):
                shutil.copy2(self._stage.kubelet_dir / assignments.NAME, self._copy)
        return "copies of state directory and checkpoint"

    def _put_back_checkpoint(self) -> None:
        name, directory = assignments.NAME, self._stage.kubelet_dir
        if (self._copy / name).exists():
            shutil.copy2(self._copy / name, directory / f".{name}")
            (directory / f".{name}").replace(directory / name)

    def _damage(self, dice: random.Random) -> None:
        """The kubelet's checkpoint is lost, or cut off."""
        file = self._stage.kubelet_dir / assignments.NAME
        if dice.random() < 0.5:
            file.unlink(missing_ok=True)
        else:
            file.write_text("{")

    async def _rollback(self, dice: random.Random) -> str:
        state = self._stage.root / "state"
        async with self._down("service", signal.SIGKILL):
            await asyncio.sleep(dice.uniform(0, 1))
            shutil.rmtree(state)
            shutil.copytree(self._copy / "state", state, dirs_exist_ok=True)
            self._judge.put_back = True
        return "done"

    async def _service_end(self, dice: random.Random) -> str:
        return await self._end_program("service", dice)

    async def _plugin_end(self, dice: random.Random) -> str:
        return await self._end_program("plugin", dice)

    async def _end_program(self, name: str, dice: random.Random) -> str:
        number = dice.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        await self._moment(dice)
        async with self._down(name, number):
            await asyncio.sleep(dice.uniform(0, 0.8))
        return number.name

    async def _moment(self, dice: random.Random) -> None:
        """Wait for the middle of a call of the kubelet, or for nothing."""
        method, pause = dice.choice((*HOOKS, "")), dice.choice((0, 0, 0.001, 0.005))
        if method:
            with suppress(TimeoutError):
                await self._kubelet.until(
                    lambda: any(it.method == method and not it.outcome for it in self._kubelet.calls[-20:]), 1.0
                )
                await asyncio.sleep(pause)
                self._pods.counters.came[f"killed during {method}"] += 1

    @asynccontextmanager
    async def _down(self, name: str, number: signal.Signals) -> AsyncIterator[None]:
        program = self._program(name)
        async with self._busy[name]:
            await program.end(number)
            try:
                yield
            finally:
                await program.start()
            if name == "service":
                await answer(self._node)

    async def _service_stop(self, dice: random.Random) -> str:
        return await self._stop_program("service", dice)

    async def _plugin_stop(self, dice: random.Random) -> str:
        return await self._stop_program("plugin", dice)

    async def _stop_program(self, name: str, dice: random.Random) -> str:
        seconds = dice.uniform(0.1, dice.choice((1, 4)))
        async with self._busy[name], self._stopped(self._program(name)):
            await asyncio.sleep(seconds)
        return f"for {seconds:.1f} s"

    @asynccontextmanager
    async def _stopped(self, program: ServiceProgram) -> AsyncIterator[None]:
        began, pid = uptime(), program.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
            if program is self._stage.service:
                self._judge.unobserved.append((began, uptime()))

    async def _shortage(self, dice: random.Random) -> str:
        most, seconds = dice.choice((3, 16, 30)), dice.uniform(0.2, 3)
        async with self._busy["service"]:
            program, began = self._stage.service, uptime()
            limits = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (most, limits[1]))
            await asyncio.sleep(seconds)
            resource.prlimit(program.pid, resource.RLIMIT_NOFILE, limits)
            self._judge.unobserved.append((began, uptime()))
        return f"{most} files for {seconds:.1f} s"

    async def _streams(self, dice: random.Random) -> str:
        async def follow(watch: AsyncIterator[object]) -> None:
            with suppress(Refused, NotReady, Unreachable):
                async for _ in watch:
                    pass

        async with self._stage.scrubber() as scrubber:
            tasks = [asyncio.create_task(follow(scrubber.watch())) for _ in range(STREAMS)]
            await asyncio.sleep(dice.uniform(0.2, 1.5))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return f"{STREAMS}"

    async def _order(self, dice: random.Random) -> str:
        return await self._scrub(dice.choice(self._stage.uuids), "")

    async def _scrub(self, gpu: str, path: str) -> str:
        try:
            async with self._stage.admin() as admin:
                ends = [it.result async for it in admin.scrub([gpu], path=path) if it.result]
        except (Refused, NotReady, Unreachable) as error:
            return str(error)
        return str([it.clean for it in ends])

    async def _quarantine(self, dice: random.Random) -> str:
        """The person insists until the GPU is back, so that nobody is refused in calm for it."""
        gpu, pause = dice.choice(self._stage.uuids), dice.uniform(0, 2)
        async with self._busy["service"], self._stage.admin() as admin:
            state = (await admin.quarantine(gpu, "a drill", "the campaign")).state
            await asyncio.sleep(pause)
            while True:
                ends = [it.result async for it in admin.reinstate([gpu], "", "the campaign") if it.result]
                if any(it.clean or it.withdrawn or it.left_alone for it in ends):
                    return f"{gpu}, {state}, is back"
                await asyncio.sleep(0.1)

    async def _list(self, dice: random.Random) -> str:  # noqa: ARG002 - a move
        """PodResources."""
        with suppress(NotRunning):
            self._kubelet.list_pod_resources()
        return "done"

    async def _stall(self, dice: random.Random) -> str:
        gpu = dice.choice(self._stage.uuids)
        drills.stall_clears(self._stage.simulated, gpu)
        await asyncio.sleep(dice.uniform(0.2, 1.5))
        drills.heal(self._stage.simulated, gpu)
        return gpu

    def _program(self, name: str) -> ServiceProgram:
        return self._stage.service if name == "service" else self._stage.plugin


async def answer(node: Node) -> None:
    """Wait for the service, which may have been started again just now."""
    retrying = AsyncRetrying(retry=retry_if_exception_type(Unreachable), wait=wait_fixed(0.05))
    async for attempt in retrying:
        with attempt:
            await node.status(node.stage.uuids[0])


def _runs(device: views.DeviceStatus, job: str) -> bool:
    return device.job is not None and device.job.id == job


def _at(device: views.DeviceStatus, wanted: Callable[[views.JobStatus], bool]) -> bool:
    return device.job is not None and wanted(device.job)


def _waits(device: views.DeviceStatus) -> bool:
    """Whether its scrub has found nobody, and waits for a turn to clear."""
    return device.job is not None and device.job.queue_place is not None


def _left_alone(device: views.DeviceStatus) -> bool:
    return device.state == "dirty" and device.job is None
