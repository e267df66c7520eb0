"""A container runtime whose containers are tenants that check their memory, and the processes that run beside them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from demo.containers import ContainerRunner
from demo.standins.pods import Container, ContainerKind, Pod
from demo.standins.runtime import CannotCreate, Devices
from plugin.kubelet_api import deviceplugin_pb2
from scrubber.devices.simulated import containers, layout
from tests.patience import WITHIN
from tests.soak.tenant import BLOCK, block

Key = tuple[str, str]  # pod UID, container
Process = asyncio.subprocess.Process
PROGRAM = Path(__file__).with_name("tenant.py")
KILLED = (-signal.SIGTERM, -signal.SIGKILL)
ANNOUNCED, REFUSED = b"\n", b"refused\n"  # what a tenant says at first


@dataclass
class Words:
    """The reports of tenants: files in a directory, and the output of tenants that fail."""

    directory: Path
    refused: list[Key] = field(default_factory=list)  # tenants that the kernel kept off a GPU: UID and container

    def __post_init__(self) -> None:
        self.directory.mkdir()
        self.errors.touch()

    @property
    def errors(self) -> Path:
        """Stands there from the beginning, empty."""
        return self.directory / "errors"

    def reports(self) -> list[str]:
        """Everything until now."""
        files = (it for it in sorted(self.directory.iterdir()) if not it.name.startswith("."))
        return [text for it in files if (text := it.read_text())]

    def inside(self, container: str) -> tuple[str, ...]:
        """What starts a process in a container, before the words of the process itself."""
        del container
        return ()

    def environment(self, container: str) -> dict[str, str]:
        """Of a process of a container, or of none."""
        return {containers.MARK: container} if container else {"PATH": os.defpath}

    async def begin(self, uid: str, deeds: str, memories: Iterable[Path], container: str = "") -> Process | None:
        """A tenant of a container, or of none, as soon as it says that it is there; None when it never does."""
        with self.errors.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *self.inside(container),
                *(sys.executable, "-I", "-S", str(PROGRAM), str(self.directory), uid, deeds, *map(str, memories)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=self.environment(container),
                start_new_session=True,
            )
        said = b""
        try:
            assert process.stdout is not None
            said = await process.stdout.readline()
        finally:
            if not said:
                await killed(process)
        if said == REFUSED:
            self.refused.append((uid, container))
            await process.wait()
        return process if said == ANNOUNCED else None


@dataclass(eq=False)
class Guest:
    """A process that no kubelet has started, on the GPU of a pod or of nobody."""

    process: Process
    what: str
    may_be_killed: bool


class Guests(ContainerRunner):
    """Runs tenants as containers, and guests beside them; whoever ends though nobody ended it is a fault."""

    speaks: type[Words] = Words

    def __init__(self, simulated: Path) -> None:
        super().__init__(simulated)
        self.words = self.speaks(simulated.parent / "words")
        self.handovers = 0  # a GPU went from one pod to another
        self.faults: list[str] = []
        self.careless: set[Key] = set()  # containers that leave a process behind at their next end
        self.guests: set[Guest] = set()
        self._on: dict[Key, tuple[str, ...]] = {}  # containers that run, to their GPUs
        self._last: dict[str, str] = {}  # GPU to the pod that was on it last
        self._shot: set[Process] = set()

    async def start(
        self, pod: Pod, container: Container, devices: Devices, response: deviceplugin_pb2.ContainerAllocateResponse
    ) -> None:
        del response
        uuids = tuple(uuid for ids in devices.values() for uuid in ids)
        is_init = container.kind is ContainerKind.INIT
        deeds = "scan write check tell" if is_init else "scan write tell watch"
        process = await self.words.begin(pod.uid, deeds, self._memories(uuids), pod.uid)
        if process is None:
            raise CannotCreate(f"{container.name} of {pod.name} did not come up: see what it told")
        self._running.setdefault((pod.uid, container.name), []).append(process)
        self._look_at_chips(pod, process, uuids)
        self._count(pod, uuids)
        if is_init:
            await self._ends_well(process, f"{container.name} of {pod.name}", may_be_killed=False)
        else:
            self._on[pod.uid, container.name] = uuids

    async def stop(self, pod: Pod, container: Container) -> None:
        key = (pod.uid, container.name)
        if key in self.careless and self.lives(*key):
            self.careless.discard(key)
            await self.leave_behind(key)
        self._on.pop(key, None)
        await super().stop(pod, container)

    def lives(self, uid: str, name: str) -> bool:
        """Whether the container runs on a GPU at this moment."""
        running = self._running.get((uid, name), ())
        return (uid, name) in self._on and bool(running) and all(it.returncode is None for it in running)

    def gpus(self, uid: str, name: str) -> tuple[str, ...]:
        """The GPUs that a container runs on."""
        return self._on.get((uid, name), ())

    def shoot(self, uid: str, name: str) -> None:
        """Kill the processes of a container. The runtime reports it only at ``stop``."""
        for process in self._running[uid, name]:
            if process.returncode is None:
                self._shot.add(process)
                process.kill()

    async def leave_behind(self, key: Key) -> None:
        """Beside a container that runs: a process of the host that has its memory open, and watches it."""
        guest = await self._guest("leftover", key[0], "tell wait watch", self._on[key][:1], may_be_killed=True)
        if guest is not None and self.lives(*key):
            await self._go(guest)

    @asynccontextmanager
    async def importer(self, key: Key, by: str) -> AsyncIterator[bool]:
        """A process of another pod has imported the memory of a container that runs; whether it came to that."""
        guest = await self._guest("importer", key[0], "tell wait watch", self._on[key][:1], container=by)
        async with self._staying(guest):
            came = guest is not None and self.lives(*key)
            if guest is not None and came:
                await self._go(guest)
            yield came

    @asynccontextmanager
    async def host_process(
        self, uid: str, uuid: str, container: str = "", deeds: str = "tell wait write watch"
    ) -> AsyncIterator[Guest | None]:
        """A process of the host, or of a container, has a GPU open; ``write`` lets it write there."""
        what = "process of a container" if container else "process of the host"
        guest = await self._guest(what, uid, deeds, (uuid,), container, may_be_killed=not container)
        async with self._staying(guest):
            yield guest

    async def write(self, guest: Guest, uid: str, uuid: str) -> None:
        """A process of the host writes from now on. No pod left it behind, so the service must not end it."""
        guest.may_be_killed = False
        self._last[uuid] = uid
        await self._go(guest)

    async def end_guests(self) -> None:
        """End the remaining guests."""
        for guest in list(self.guests):
            await self._end_guest(guest)

    async def clear_away(self) -> None:
        await self.end_guests()
        await super().clear_away()

    def _memories(self, uuids: Collection[str]) -> list[Path]:
        return [layout.find(self._simulated, uuid).memory for uuid in uuids]

    def _look_at_chips(self, pod: Pod, process: Process, uuids: Collection[str]) -> None:
        """The on-chip memory holds nothing of another pod; from now on it holds the fingerprint of this one."""
        for uuid in uuids:
            chip = layout.find(self._simulated, uuid).chip
            if left := chip.read_bytes().replace(block(pod.uid), b"").strip(b"\0"):
                words = f"RESIDUE: pod {pod.uid} (pid {process.pid}): {chip} holds {left[:BLOCK]!r}\n"
                (self.words.directory / f"RESIDUE-{pod.uid}-chip-{process.pid}").write_text(words)
            with chip.open("r+b") as file:
                file.write(block(pod.uid))

    def _count(self, pod: Pod, uuids: Collection[str]) -> None:
        for uuid in uuids:
            before = self._last.get(uuid)
            self.handovers += before not in (None, pod.uid)
            self._last[uuid] = pod.uid

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
        process = await self.words.begin(uid, deeds, self._memories(uuids), container)
        if process is None:
            return None
        guest = Guest(process, f"the {what} on {', '.join(uuids)}", may_be_killed)
        self.guests.add(guest)
        return guest

    async def _go(self, guest: Guest) -> None:
        assert guest.process.stdin is not None
        guest.process.stdin.write(b"\n")

    @asynccontextmanager
    async def _staying(self, guest: Guest | None) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if guest is not None:
                await self._end_guest(guest)

    async def _end_guest(self, guest: Guest) -> None:
        self.guests.discard(guest)
        await self._ends_well(guest.process, guest.what, may_be_killed=guest.may_be_killed)

    async def _end(self, uid: str, name: str) -> None:
        """Told to end; it looks once more. A sandbox has nothing to look at."""
        if not name:
            await super()._end(uid, name)
        for process in self._running.pop((uid, name), ()):
            await self._ends_well(process, f"{name} of {uid}", may_be_killed=False)

    async def _ends_well(self, process: Process, who: str, *, may_be_killed: bool) -> None:
        try:
            assert process.stdin is not None
            process.stdin.close()
            async with asyncio.timeout(WITHIN):
                code = await process.wait()
        finally:
            if process.returncode is None:  # the kubelet died while we waited, or it does not end
                self._shot.add(process)
            await killed(process)
        shot = may_be_killed or process in self._shot
        if code != 0 and not (shot and code in KILLED):
            self.faults.append(f"{who} (pid {process.pid}) ended with {code}, and nobody here has ended it")


async def killed(process: Process) -> None:
    """Kill a process, and wait for its end."""
    if process.returncode is None:
        process.kill()
    await asyncio.shield(process.wait())
