"""A simulated node: its GPUs, the processes and containers on them, and every known fault.

It holds the truth that the service is compared with: the bytes in each memory, and who wrote and who saw them. It
implements ``devices.base.Backend`` and, with ``holders``, the search for processes.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import TypeVar

from scrubber.core.model import AilmentKind, DeviceInfo, DeviceNumber, Holder, Moment, NodeKind, Sign, Step, Vitals, Xid
from scrubber.core.use_counter import Counted, Missed, NoUseCounter, UseCounter, UseReading
from scrubber.devices.base import (
    Address,
    DeviceError,
    DeviceHandling,
    DeviceLostError,
    DriverClosedError,
    OpenFiles,
    Readings,
)
from scrubber.devices.blocking_calls import UnresponsiveError
from scrubber.node.processes import no_bystander
from tests.service.kernel import SERVICE, Kernel
from tests.service.virtual import VirtualLoop
from tests.trace import NODE, Trace

T = TypeVar("T")
BLOCK = 2**20
BLOCKS = 4
WALL = 1_760_000_000.0
BOOTING = 30.0  # uptime when a boot's first program runs
LOOK_AGAIN = 0.25  # how soon a call that hung returns after its cause was healed
KEPT = 32  # events of one code that its log remembers


class HungError(Exception):
    """This call does not return before the cause is healed."""


class Kind(Enum):
    """Why a process is on a device."""

    TENANT = "tenant"  # it was let on
    FOREIGN_PROCESS = "intruder"  # uses a device without a request
    WORKER = "worker"  # a scrub of ours


@dataclass(eq=False)
class Process:
    """A process that uses a device. ``seen``: some look has met it."""

    pid: int
    gpu: str
    kind: Kind
    name: str  # whose bytes it writes
    started: float  # uptime
    came: float  # the loop's time
    life: int | None  # the service that was up when it came
    container: str | None = None
    seen: bool = False
    alive: bool = True
    unwatched: bool = False  # it was there while no service was up
    stuck: bool = False  # it hangs in the kernel, and no signal reaches it
    refused: bool = False  # the fence has kept it off
    secret: bool = False  # the driver does not list it: only a search finds it


@dataclass(eq=False)
class Gpu:
    """One device: the content of its memory, its holders and its faults."""

    info: DeviceInfo
    blocks: list[Process | None] = field(default_factory=lambda: [None] * BLOCKS)  # the last writer; None means zeros
    chip: Process | None = None  # the last writer of the on-chip memory; None means zeros
    processes: dict[int, Process] = field(default_factory=dict)
    left: float = -math.inf  # uptime when a process last left it that was no worker of ours
    uses: int = 0  # how many such processes have left it while the use counter did not miss them
    deeds: list[Step] = field(default_factory=list)  # what the workers of the newest path did, really and wholly
    drift: bool = False
    lost: bool = False
    cut: bool = False  # there is nothing but slices of it
    away: bool = False  # a slice that is in its GPU's layout no more
    hangs: bool = False
    blind: bool = False  # its holders cannot be determined
    silent_on_holders: bool = False  # the driver alone cannot say who holds it
    bad_memory: bool = False
    stalls: bool = False
    crashes: bool = False  # its workers die
    traps: int = 0  # so many kernels will fail
    reset_fails: bool = False
    memory_unreachable: bool = False  # half of it cannot be reached
    unit_unreachable: bool = False  # a unit of it cannot be reached
    computes_wrongly: bool = False  # a unit of it computes wrongly
    xids: list[Xid] = field(default_factory=list)
    reported: int = 0  # the number of its newest event
    ecc: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    reset_required: bool = False
    leaked: int = 0
    signs: tuple[Sign, ...] = ()

    def users(self) -> list[Process]:
        """The processes on the device, without our workers."""
        return [process for process in self.processes.values() if process.kind is not Kind.WORKER]

    def heal(self) -> None:
        """End all faults of the device. Its memory keeps its content."""
        self.lost = self.hangs = self.blind = self.silent_on_holders = self.stalls = self.crashes = False
        self.bad_memory = self.memory_unreachable = self.unit_unreachable = self.computes_wrongly = False
        self.reset_fails = self.remap_pending = self.remap_failed = self.reset_required = False
        self.leaked, self.traps, self.signs = 0, 0, ()

    def vitals(self) -> Vitals:
        """The vitals that the driver reports of the device."""
        return Vitals(
            lost=self.lost,
            xids=tuple(self.xids),
            ecc_uncorrectable=self.ecc,
            remap_pending=self.remap_pending,
            remap_failed=self.remap_failed,
            leaked_bytes=self.leaked,
            reset_required=self.reset_required,
            signs=self.signs,
        )


def _as_holder(process: Process) -> Holder:
    state = "D" if process.stuck else "S"
    return Holder(process.pid, process.started, f"{process.name} --secret", process.container, state)


class Node:
    """The devices of one machine, over its boots."""

    name = "pretend"
    gave_up, unreadable, missing = False, "", MappingProxyType[str, str]({})  # each search here reads all in time
    settled, bystander_pods = True, MappingProxyType[str, frozenset[str]]({})
    pace = 1.0

    def __init__(self, loop: VirtualLoop, gpus: int, *, fenced: bool = False) -> None:
        """The last two devices share a reset domain, if there are three. ``fenced``: its kernel can fence them."""
        self.kernel = Kernel(lambda: self.now().uptime) if fenced else None
        self.loop = loop
        self.trace = Trace(loop.time)
        self.gpus: dict[str, Gpu] = {}
        self.alive: set[str] = set()  # containers of which something runs
        self.tells_ends = fenced  # as control groups of version 2 do; otherwise only a walk tells
        self.boots = 1
        self.drivers = 1
        self.hidden: set[str] = set()  # devices that are not there any more
        self.driver_hangs = False  # the driver as a whole hangs
        self.reset_by_tools: set[str] = set()  # devices that a tool still resets
        self.unrestored: set[str] = set()  # devices with a pending restore
        self.restores_fail = False
        self.keeps_uses = True  # the driver knows of uses that have ended
        self.misses_uses = False  # ... but cannot do so for now
        self.restored_by_worker: list[str] = []  # by worker, in order
        self.away = 0  # how many resets demand that the service keeps off the driver
        self.hung_at = float("-inf")  # the last call of a hanging driver
        self.in_search: list[Callable[[str], object]] = []  # what the next searches find too late
        self.life: int | None = None  # the service that is up
        self.jump = 0.0  # seconds by which the wall clock was changed
        self._booted = -BOOTING
        self._pids = itertools.count(100)
        for index in range(gpus):
            domain = "nvlink-0" if gpus > 2 and index >= gpus - 2 else None
            info = DeviceInfo(f"GPU-{index:04x}", index, "Pretend H100", BLOCK * BLOCKS, reset_domain=domain)
            self.gpus[info.uuid] = Gpu(info)

    def now(self) -> Moment:
        """Both clocks."""
        return Moment(WALL + self.loop.time() + self.jump, self.loop.time() - self._booted)

    @property
    def boot_id(self) -> str:
        """Names this boot."""
        return f"boot-{self.boots}"

    def lacks(self, _device: DeviceInfo) -> str | None:
        """Nothing, unless a test says so."""
        return None

    # -- what happens to it

    def lay_out(self, parent: str, *slices: str) -> None:
        """Cut the GPU into these slices in place of its present ones. Without slices, the GPU is whole again."""
        board = self.gpus[parent]
        board.cut = bool(slices)
        for number, uuid in enumerate(slices):
            about = {"mig": True, "parent": parent, "slice": number, "reset_domain": parent}
            self.gpus.setdefault(uuid, Gpu(replace(board.info, uuid=uuid, **about)))  # type: ignore[arg-type] # by name
        for uuid, gpu in self.gpus.items():
            gpu.away = gpu.info.parent == parent and uuid not in slices

    def enter(
        self, uuid: str, kind: Kind, name: str, container: str | None = None, *, writes: bool = True
    ) -> Process:  # fmt: skip
        """A process opens the device. Tenants and foreign processes that write overwrite all of its memory."""
        gpu, now = self.gpus[uuid], self.now()
        process = Process(
            next(self._pids), uuid, kind, name, now.uptime, self.loop.time(), self.life, container,
            unwatched=self.life is None,
        )  # fmt: skip
        group = SERVICE if kind is Kind.WORKER else self.kernel.group(container) if self.kernel is not None else 0
        if self.kernel is not None and not self.kernel.opens(number_of(gpu), group, process.pid):
            process.refused, process.alive = True, False
            self._say(process, "is kept off")
            return process
        gpu.processes[process.pid] = process
        self._say(process, "comes and writes" if writes else "comes")
        if container is not None:
            self.alive.add(container)
        if writes and kind is not Kind.WORKER:
            gpu.blocks, gpu.chip = [process] * BLOCKS, process
        return process

    def leave(self, process: Process) -> None:
        """The process ends. What the process wrote stays in memory."""
        if process.refused:
            return
        process.alive = False
        self._say(process, "leaves")
        process.unwatched |= self.life != process.life
        if process.kind is not Kind.WORKER:
            self.gpus[process.gpu].left = self.now().uptime
            self.gpus[process.gpu].uses += self.keeps_uses and not self.misses_uses
        self.gpus[process.gpu].processes.pop(process.pid, None)

    def _say(self, process: Process, does: str) -> None:
        if process.kind is not Kind.WORKER:
            where = f" of {process.container}" if process.container else ""
            self.trace.say(NODE, f"process {process.pid}{where}, {process.kind.value}, {does}", process.gpu)

    def miss_uses(self, missed: bool) -> None:  # noqa: FBT001 - a switch
        """The use counter cannot answer, or can again: what it has missed counts as a use."""
        if self.misses_uses and not missed:
            for gpu in self.gpus.values():
                gpu.uses += 1
        self.misses_uses = missed
        if self.kernel is not None:
            self.kernel.fails = missed

    def end_container(self, container: str, *, leaving: bool = False) -> None:
        """End a container; with ``leaving`` its processes stay behind without a container."""
        self.alive.discard(container)
        for process in self.everybody():
            if process.container == container and leaving:
                process.container = None
            elif process.container == container:
                self.leave(process)

    def everybody(self) -> Iterator[Process]:
        """All processes on all devices."""
        return itertools.chain.from_iterable(list(gpu.processes.values()) for gpu in self.gpus.values())

    def reboot(self) -> None:
        """Nobody survives; memory may."""
        for process in self.everybody():
            self.leave(process)
        self.alive.clear()
        self.boots += 1
        self.kernel = Kernel(lambda: self.now().uptime) if self.kernel is not None else None
        self._booted = self.loop.time() - BOOTING
        for gpu in self.gpus.values():
            gpu.xids.clear()
            gpu.reported = gpu.ecc = gpu.leaked = 0  # of this boot alone
            gpu.left = -math.inf

    def report(self, uuid: str, codes: Sequence[int], action: str = "", pid: int | None = None) -> None:
        """The driver reports errors, in its log of which old ones are lost, code by code."""
        gpu = self.gpus[uuid]
        for code in codes:
            gpu.reported += 1
            gpu.xids.append(Xid(gpu.reported, code, self.now().uptime, action, pid))
            alike = [xid for xid in gpu.xids if xid.code == code]
            if len(alike) > KEPT:
                gpu.xids.remove(alike[0])

    def heal(self) -> None:
        """End all faults and all processes, except the workers of a running service. Nobody comes any more."""
        self.driver_hangs = False
        self.in_search.clear()
        self.miss_uses(False)
        for gpu in self.gpus.values():
            gpu.heal()
        for process in self.everybody():
            if process.kind is not Kind.WORKER or process.life != self.life:
                self.leave(process)
        self.alive.clear()

    # -- scrubber.devices.base.Backend

    def inventory(self) -> tuple[DeviceInfo, ...]:
        """All devices."""
        self._speak()
        return tuple(gpu.info for uuid, gpu in self.gpus.items() if uuid not in self.hidden)

    def driver(self) -> str:
        """This driver instance."""
        self._speak()
        return f"driver-{self.boots}.{self.drivers}"

    def has_holders(self, uuid: str) -> bool | None:
        """The driver's own word."""
        self._open()
        gpu = self._answering(uuid)
        for process in gpu.processes.values():
            process.seen = True
        silent = gpu.silent_on_holders or gpu.blind or gpu.cut or gpu.away
        return None if silent else any(not it.secret for it in gpu.processes.values())

    def listed_holders(self, uuid: str) -> frozenset[int]:
        """All but the secret ones, which have no context."""
        self._open()
        gpu = self._answering(uuid)
        return frozenset(it.pid for it in gpu.processes.values() if not it.secret)

    def read_uses(self, uuid: str) -> UseReading:
        """How often a process has closed the device, if the driver records that."""
        if not self.keeps_uses:
            return NoUseCounter("this driver keeps no accounts")
        return Missed("raise its limit") if self.misses_uses else Counted(UseCounter.FILES, self.gpus[uuid].uses)

    def open_files(self, uuid: str) -> OpenFiles:  # noqa: ARG002 - the port's
        """Not counted."""
        return OpenFiles(None, frozenset())

    def numbers(self, uuid: str) -> frozenset[DeviceNumber]:
        """One, if it can be fenced."""
        return frozenset() if self.kernel is None else frozenset({number_of(self.gpus[uuid])})

    def memory(self, uuid: str) -> None:
        """Not counted."""

    def vitals(self, uuid: str) -> Vitals:
        """Health now."""
        self._open()
        gpu = self._answering(uuid)
        return Vitals(lost=True, relaid=gpu.cut) if gpu.cut or gpu.away else gpu.vitals()

    def quick_observation(self, uuid: str) -> tuple[Vitals, bool | None]:
        """Both at once."""
        return self.vitals(uuid), self.has_holders(uuid)

    def reported(self, uuid: str) -> Vitals | None:
        """The XIDs of the device and the signs of switches, as the kernel logged them, also while the driver hangs."""
        gpu = self.gpus.get(uuid)
        if gpu is None:
            return None
        signs = tuple(sign for sign in gpu.signs if sign.kind is AilmentKind.SWITCH)
        return Vitals(xids=tuple(gpu.xids), signs=signs, partial=True)

    def readings(self) -> dict[str, Readings]:
        """This driver has no sensors."""
        return {}

    def files(self, uuid: str) -> tuple[str, ...]:
        """One pretended file for each device."""
        return (f"/dev/pretend/{uuid}",)

    def reach(self, uuid: str) -> tuple[str, ...]:
        """The files of the devices that a reset would hit."""
        return self.files(uuid)

    def address(self, uuid: str, handling: DeviceHandling) -> Address:
        """The address by which a worker opens the device."""
        del handling
        return Address(self.name, uuid)

    def container_of(self, pid: int) -> str | None:
        """The container of a process."""
        return next((process.container for process in self.everybody() if process.pid == pid), None)

    def member(self, container: str) -> int | None:
        """A process of the container that uses a device. Of others only ``living`` tells."""
        return next((it.pid for it in self.everybody() if it.container == container), None)

    def has_ended(self, container: str) -> bool:
        """Where the kernel tells it."""
        return self.tells_ends and container not in self.alive and self.member(container) is None

    def living(self, wanted: Collection[str] = ()) -> dict[str, int]:  # noqa: ARG002 - the port's
        """The containers that have a running process."""
        return dict.fromkeys(self.alive, 0)

    def pending_restores(self) -> dict[str, Address]:
        """The pending restores that a test has set; none while a tool still resets the device."""
        return {uuid: Address(self.name, uuid) for uuid in self.unrestored - self.reset_by_tools}

    def in_reset(self, uuid: str) -> bool:
        """Whether the tool of a killed worker still resets the device."""
        return uuid in self.reset_by_tools

    def alarm(self) -> None:
        """This driver reports nothing unless the service asks."""

    def clear_alarm(self) -> None:
        """Nothing to silence."""

    def close(self) -> None:
        """Nothing to end."""

    def release_driver(self) -> None:
        """Nobody asks until ``reacquire_driver``."""
        self.away += 1

    def reacquire_driver(self) -> None:
        """Once for each ``release_driver``."""
        self.away -= 1
        assert self.away >= 0

    # -- the observer of processes

    def holders(
        self,
        files: Mapping[str, Sequence[str]],
        exclude: Collection[int] = (),
        is_bystander: Callable[[Holder], bool] = no_bystander,
        listed: Mapping[str, Collection[int]] = MappingProxyType({}),
        within: float = math.inf,
    ) -> dict[str, tuple[Holder, ...] | None]:
        """Who uses each device; None where that cannot be proven."""
        del listed  # all of them are found
        assert within > 0
        blind = {uuid for uuid, paths in files.items() if self.gpus[uuid].blind or not paths}
        found = {uuid: None if uuid in blind else self._holders(uuid, exclude, is_bystander) for uuid in files}
        if self.in_search and files:
            self.in_search.pop(0)(next(iter(files)))
        return found

    def process(self, pid: int) -> tuple[Holder, ...]:
        """A process that uses a device."""
        return tuple(_as_holder(it) for it in self.everybody() if it.pid == pid)

    def lives(self, holder: Holder) -> bool:
        """Whether it runs."""
        return any(it.pid == holder.pid for it in self.everybody())

    def descends(self, pid: int, ancestors: Collection[int]) -> bool:
        """No process here starts another one."""
        return pid in ancestors

    def _holders(
        self, uuid: str, exclude: Collection[int], is_bystander: Callable[[Holder], bool]
    ) -> tuple[Holder, ...]:  # fmt: skip
        found = [process for process in self.gpus[uuid].processes.values() if process.pid not in exclude]
        for process in found:
            process.seen = True
        return tuple(holder for holder in map(_as_holder, found) if not is_bystander(holder))

    def _open(self) -> None:
        if self.away:
            raise DriverClosedError

    def _speak(self) -> None:
        if self.driver_hangs:
            self.hung_at = self.loop.time()
            raise HungError

    def _answering(self, uuid: str) -> Gpu:
        gpu = self.gpus.get(uuid)
        if gpu is None or uuid in self.hidden:
            raise DeviceError(f"there is no {uuid}")
        if gpu.hangs:
            self.hung_at = self.loop.time()
            raise HungError
        if gpu.lost:
            raise DeviceLostError(f"{uuid} has fallen off its bus")
        return gpu


def number_of(gpu: Gpu) -> DeviceNumber:
    """The number of the device's node."""
    return DeviceNumber(NodeKind.CHARACTER, 195, gpu.info.index)


class PretendCaller:
    """Asks the simulated driver on the event loop, with the deadlines of ``scrubber.devices.blocking_calls.Caller``.

    One call a key at a time. Answers take some turns of the loop, never the same number, so that things cross.
    """

    def __init__(self, chance: random.Random) -> None:
        """``chance`` decides how many turns."""
        self._chance = chance
        self._under_way: dict[str, asyncio.Task[object]] = {}

    async def ask(self, key: str, question: Callable[[], T], deadline: float) -> T:
        """The answer, or UnresponsiveError when it is late."""
        ends = asyncio.get_running_loop().time() + deadline
        while (earlier := self._under_way.get(key)) is not None and not earlier.done():
            if earlier.get_name() == "overdue":
                raise UnresponsiveError(f"cannot ask {key}: an earlier call has not returned")
            await asyncio.wait({earlier}, timeout=max(0.0, ends - asyncio.get_running_loop().time()))
            if not earlier.done():
                raise UnresponsiveError(f"cannot ask {key}: other calls took the whole {deadline:g} s")
        call = asyncio.create_task(self._answer(question))
        call.add_done_callback(lambda it: it.cancelled() or it.exception())  # its asker may be gone
        self._under_way[key] = call
        await asyncio.wait({call}, timeout=ends - asyncio.get_running_loop().time())
        if not call.done():
            call.set_name("overdue")
            raise UnresponsiveError(f"{key} did not answer within {deadline:g} s")
        return call.result()

    def time(self) -> float:
        """The service can always run."""
        return asyncio.get_running_loop().time()

    def could_run(self, since: float, seconds: float) -> bool:
        """Whether this time has passed since then."""
        return self.time() - since >= seconds

    async def _answer(self, question: Callable[[], T]) -> T:
        await self._slots()
        while True:
            try:
                answer = question()
            except HungError:
                await asyncio.sleep(LOOK_AGAIN)
                continue
            await self._slots()
            return answer

    async def _slots(self) -> None:
        for _ in range(self._chance.randrange(3)):
            await asyncio.sleep(0)
