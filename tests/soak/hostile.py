"""The runtime of the campaign: tenants that look for themselves, and attackers beside them."""

from __future__ import annotations

import asyncio
import math
import os
import select
import signal
import sys
import time
import uuid as uuids
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from demo import groups
from demo.standins.pods import Container, Pod
from demo.standins.runtime import Devices
from plugin.kubelet_api import deviceplugin_pb2
from scrubber.devices.simulated import layout
from scrubber.node.group_places import GROUPS
from tests.patience import WITHIN
from tests.soak.guests import PROGRAM, REFUSED, Guest, Guests, Key, Process, Words

ATTACKER = PROGRAM.with_name("attacker.py")
ANSWERED = 1.0  # seconds at most from the last observation of PreStartContainer to the start of the container
_FLOOD = """
import os, signal, sys
opened = ended = False
def end(*_):
    global ended
    ended = True
signal.signal(signal.SIGTERM, end)
turn = 0
while not ended:
    turn += 1
    if turn % 20 == 0:  # in another group, by another name
        group = f"{sys.argv[2]}/flood-{turn // 20 % 200}"
        os.makedirs(group, exist_ok=True)
        open(f"{group}/cgroup.procs", "w").write("0")
        open("/proc/self/comm", "w").write(f"flood-{turn}")
    try:
        os.close(os.open(sys.argv[1], os.O_RDONLY))
        opened = True
    except PermissionError:
        pass
print("opened" if opened else "refused")
"""
ENDS_WITHIN = 15.0  # seconds from the end of an owner that the fence could not name until it closes
LEFTOVER, FOREIGN, BRIEF_USER = "leftover", "foreign process", "short manner"


def uptime() -> float:
    """The clock of tenants and attackers."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class GroupedWords(Words):
    """Tenants are in the control group of their pod, or are known by their environment alone."""

    grouped: bool = False
    top: Path | None = None  # below which everybody has a control group, with a fence around the GPUs
    emptied: set[str] = field(default_factory=set)  # pods whose processes have no environment

    def inside(self, container: str) -> tuple[str, ...]:
        if self.top is not None:
            group = groups.of_container(self.top, container) if container else self.host
        elif self.grouped and container:
            group = group_of(container)
        else:
            return ()
        return ("sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(group))

    @property
    def host(self) -> Path:
        """The control group of processes that are in no container; with a fence only."""
        assert self.top is not None
        group = self.top / "host"
        group.mkdir(exist_ok=True)
        return group

    def environment(self, container: str) -> dict[str, str]:
        return {} if container in self.emptied else super().environment(container)


@dataclass(eq=False)
class Attacker:
    """A process, or several that come of one, with the memory of a GPU open."""

    kind: str
    what: str
    gpu: str
    own: str  # the name in its fingerprint
    pod: str  # the UID of the pod that left it behind; empty for others
    opened: float  # uptime
    process: Process
    pipe: int  # open for writing in each of its processes
    gone: float | None = None  # uptime at which it was ended

    def lives(self) -> bool:
        """Whether a process of the attacker lives."""
        return self.gone is None and not _hung_up(self.pipe, 0)

    def begin(self) -> None:
        """Tell the attacker to read or write from now on."""
        if self.process.stdin is not None:
            self.process.stdin.write(b"\n")

    async def end(self) -> None:
        """End all processes of the attacker."""
        if self.gone is None:
            if not _hung_up(self.pipe, 0):  # so its group cannot be another one by now
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
            assert await asyncio.to_thread(_hung_up, self.pipe, WITHIN), f"cannot end {self.what}"
            self.gone = uptime()
            os.close(self.pipe)
        await self.process.wait()


@dataclass(frozen=True)
class Use:
    """A process that was not given a GPU has opened it."""

    what: str
    gpu: str
    opened: float  # uptime at which it had the GPU at the latest
    open_to_all: bool  # the fence cannot name the owner that the GPU has, or had until just now


@dataclass(frozen=True)
class Entry:
    """The first container of a pod starts on a GPU."""

    pod: Pod
    gpu: str
    asked: float
    proven: float  # uptime of the proof of the GPU that was the last one by then


def _hung_up(pipe: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(pipe, 0)  # only the end counts
    return bool(poll.poll(seconds * 1000))


class Hostile(Guests):
    """Runs tenants as containers, and attackers beside them."""

    speaks = GroupedWords

    def __init__(self, simulated: Path) -> None:
        super().__init__(simulated)
        self.say: Callable[[str], None] = lambda _: None  # what comes about, for a history
        self.attackers: list[Attacker] = []
        self.names: dict[str, str] = {}  # pod UID to its name
        self.asked: dict[str, float] = {}  # pod UID to the uptime just before it last asked to start
        self.entered: dict[str, float] = {}  # pod UID to when it asked for its first start
        self.had: defaultdict[str, list[str]] = defaultdict(list)  # GPU to the UIDs of the pods that started on it
        self.company: list[tuple[Pod, float, Attacker]] = []  # pods that started, when they asked, and who was there
        self.proven: Callable[[str], float] = lambda _gpu: 0.0  # uptime of the last proof of a GPU, by the ledger
        self.freed: Callable[[str], float] = lambda _gpu: 0.0  # the same of the last end of a tenancy, or of a scrub
        self.ended: dict[str, float] = {}  # pod UID to the uptime at which its sandbox was gone
        self.uses: list[Use] = []  # with a fence, as all below
        self.entries: list[Entry] = []
        self.shut_out: list[tuple[Pod, float]] = []  # pods that the kernel kept off their own GPU, and when they asked
        self.kept_off = 0  # others that it kept off a GPU
        self._open_to_all: list[tuple[str, float, float]] = []  # GPU, from which uptime to which

    @property
    def fenced(self) -> bool:
        """Whether the kernel knows who opens a GPU."""
        return self.tenants.top is not None

    @property
    def tenants(self) -> GroupedWords:
        """How they are started."""
        assert isinstance(self.words, GroupedWords)
        return self.words

    async def open_sandbox(self, pod: Pod) -> None:
        self.names[pod.uid] = pod.name
        self.asked[pod.uid] = uptime()
        if self.tenants.grouped and (pod.uid, "") not in self._running:
            group_of(pod.uid).mkdir(parents=True, exist_ok=True)
            await super().open_sandbox(pod)
            (group_of(pod.uid) / "cgroup.procs").write_text(str(self.pids(pod, "")[0]))
            return
        await super().open_sandbox(pod)

    async def close_sandbox(self, pod: Pod) -> None:
        await self._end(pod.uid, "")  # its control group stays for a while, so that somebody can ask from there
        self.ended[pod.uid] = uptime()
        if self.tenants.grouped:
            with suppress(OSError):  # it never was there, or a process is still about to leave it
                group_of(pod.uid).rmdir()

    async def start(
        self, pod: Pod, container: Container, devices: Devices, response: deviceplugin_pb2.ContainerAllocateResponse
    ) -> None:
        gpus = {uuid for ids in devices.values() for uuid in ids}
        asked = self._enters(pod, gpus)
        for gpu in gpus:
            self.had[gpu].append(pod.uid)
        others = [it for it in self.attackers if it.gpu in gpus and it.pod != pod.uid and it.lives()]
        self.company += [(pod, asked, it) for it in others]
        self.say(f"{container.name} of {pod.name} starts on {', '.join(gpus)}")
        with self._shut_out(pod, asked):
            await super().start(pod, container, devices, response)

    def _enters(self, pod: Pod, gpus: Collection[str]) -> float:
        """When it asked: a container starts now. The answer to its question may have waited for an earlier holder."""
        asked = max(self.asked[pod.uid], uptime() - ANSWERED)
        if pod.uid not in self.entered:
            self.entries += [Entry(pod, gpu, asked, self.proven(gpu)) for gpu in gpus]
        self.entered.setdefault(pod.uid, asked)
        return asked

    @contextmanager
    def _shut_out(self, pod: Pod, asked: float) -> Iterator[None]:
        """A container of this pod starts in the body."""
        try:
            yield
        finally:
            if (pod.uid, pod.uid) in self.words.refused:
                self.words.refused.remove((pod.uid, pod.uid))
                self.shut_out.append((pod, asked))

    async def stop(self, pod: Pod, container: Container) -> None:
        await super().stop(pod, container)
        self.say(f"{container.name} of {pod.name} has ended")
        if not any(uid == pod.uid for uid, _ in self._on):
            for attacker in self.attackers:
                if attacker.pod == pod.uid:
                    attacker.begin()

    async def late(self, pod: Pod, gpus: Sequence[str], seconds: float) -> None:
        """A container of a pod that the kubelet has dropped comes, stays for a while and ends."""
        self._last.update(dict.fromkeys(gpus, pod.uid))
        asked = self._enters(pod, gpus)
        with self._shut_out(pod, asked):
            process = await self.words.begin(pod.uid, "scan write tell watch", self._memories(gpus), pod.uid)
        if process is not None:
            try:
                await asyncio.sleep(seconds)
            finally:
                await self._ends_well(process, f"main of {pod.name}", may_be_killed=False)

    async def open_and_close(self, gpu: str, pod: str = "") -> bool:
        """A process of the host opens the memory of a GPU to write there, and closes it at once. Whether it could.

        With a fence, it may be in the control group of a pod.
        """
        began, what = uptime(), f"a process in the group of {self.names[pod]}" if pod else "a process of the host"
        command = ("sh", "-c", ': <> "$0"', str(layout.find(self._simulated, gpu).memory))
        words = (*self.tenants.inside(pod), *command)
        process = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE, env={"PATH": os.defpath})
        _, said = await process.communicate()
        assert process.returncode == 0 or b"Operation not permitted" in said, said
        self._tried(what, gpu, began, opened=process.returncode == 0)
        return process.returncode == 0

    async def flood(self, gpu: str, seconds: float) -> bool:
        """A process of the host opens the memory of a GPU as often as it can, from many groups. Whether it could."""
        began, memory = uptime(), str(layout.find(self._simulated, gpu).memory)
        words = (*self.tenants.inside(""), sys.executable, "-S", "-c", _FLOOD, memory, str(self.tenants.host))
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        await asyncio.sleep(seconds)
        process.terminate()
        said, _ = await process.communicate()
        self._tried("a flood of the host", gpu, began, opened=said == b"opened\n")
        return said == b"opened\n"

    def _tried(self, what: str, gpu: str, began: float, *, opened: bool) -> None:
        """Somebody has tried since this uptime to open a GPU that was not given to him."""
        self.kept_off += not opened
        self.say(f"{what} {'opens' if opened else 'is kept off'} {gpu}")
        if opened and self.fenced:
            to_all = any(it == gpu and since <= uptime() and began <= until for it, since, until in self._open_to_all)
            self.uses.append(Use(what, gpu, uptime(), to_all))

    @contextmanager
    def open_to_all(self, gpus: Sequence[str]) -> Iterator[None]:
        """During the body and a little longer, the fence cannot name the owner of these GPUs."""
        began = uptime()
        self._open_to_all += [(gpu, began, math.inf) for gpu in gpus]
        try:
            yield
        finally:
            for gpu in gpus:
                self._open_to_all.remove((gpu, began, math.inf))
                self._open_to_all.append((gpu, began, uptime() + ENDS_WITHIN))

    async def _guest(
        self,
        what: str,
        uid: str,
        deeds: str,
        uuids: Collection[str],
        container: str = "",
        *,
        may_be_killed: bool = False,
    ) -> Guest | None:
        began = uptime()
        guest = await super()._guest(what, uid, deeds, uuids, container, may_be_killed=may_be_killed)
        refused = (uid, container) in self.words.refused
        if refused:
            self.words.refused.remove((uid, container))
        if guest is not None or refused:
            for gpu in uuids:
                self._tried(f"the {what}", gpu, began, opened=guest is not None)
        return guest

    @property
    def simulated(self) -> Path:
        """The directory of all GPUs."""
        return self._simulated

    def running(self) -> list[Key]:
        """The containers that run on a GPU."""
        return [key for key in self._on if self.lives(*key)]

    async def attack(
        self, kind: str, gpu: str, manner: str, deed: str, pod: str = "", stay: float = 0.0
    ) -> Attacker | None:
        """Start an attacker, and return it once it has the memory open; None if it ends before."""
        own, began = str(uuids.uuid4()), uptime()
        inside = self.tenants.inside(pod if self.fenced else "")
        escapes = str(self.tenants.host) if self.fenced and pod else ""  # it was of the pod when it opened the GPU
        ours, theirs = os.pipe()
        memory = layout.find(self._simulated, gpu).memory
        words = (manner, escapes, str(self.words.directory), own, pod, deed, str(stay), str(memory))
        try:
            with self.words.errors.open("ab") as errors:
                process = await asyncio.create_subprocess_exec(
                    *(*inside, sys.executable, "-I", "-S", str(ATTACKER), *words),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=theirs,
                    stderr=errors,
                    env={"PATH": os.defpath},
                    start_new_session=True,
                )
        finally:
            os.close(theirs)
        said = await asyncio.to_thread(os.read, ours, 64)
        if not pod and said:
            self._tried(f"{kind}, {manner}", gpu, began, opened=said != REFUSED)
        said = said.replace(REFUSED, b"")
        attacker = Attacker(kind, f"{manner}, {deed}", gpu, own, pod, float(said or 0), process, ours)
        self.attackers.append(attacker)
        self.say(f"{kind}, {attacker.what}, of {self.names.get(pod, 'nobody')}, has {gpu}: {own}")
        if not said:
            await attacker.end()
            return None
        return attacker

    async def end_attackers(self) -> None:
        """End all attackers."""
        for attacker in self.attackers:
            await attacker.end()

    async def clear_away(self) -> None:
        await self.end_attackers()
        await super().clear_away()
        self.forget_groups()
        if self.tenants.grouped:
            for uid in self.asked:
                with suppress(OSError):
                    group_of(uid).rmdir()

    def forget_groups(self) -> None:
        """Remove the control groups of pods that have ended."""
        if self.tenants.top is not None:
            groups.clear(self.tenants.top / "kubepods")


def group_of(pod: str) -> Path:
    """The control group of a pod, in the unified hierarchy or in one of the first version."""
    return (GROUPS if (GROUPS / "cgroup.procs").exists() else GROUPS / "pids") / f"kubepods/pod{pod}"
