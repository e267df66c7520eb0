"""Runs the containers of the kubelet stand-in: real processes that use simulated GPUs.

As with a real runtime, the sandbox of a pod starts before its containers and ends after them. A container holds the
memory of its GPUs open and writes the mark of its pod into it, and onto the chip. A mark that another pod finds is a
leak.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from demo import groups
from demo.standins.pods import Container, ContainerKind, Pod
from demo.standins.runtime import Devices, Runtime
from ground.paths import RECEIPTS_IN_CONTAINERS
from plugin.kubelet_api import deviceplugin_pb2
from scrubber.devices.simulated import containers, layout

BLOCK = 64  # bytes; a mark fits into one block
# During exec a process has no environment for a moment, and so no container. These scripts print a line when that is
# over. They run until they are killed or their standard input ends.
SANDBOX = "echo; read -r _"
# Opens the memory, writes the mark into some blocks and onto the chip, and prints a line. An init container then ends.
CONTAINER = """
exec 8<>"$5" 9<>"$1" || exit
for block in $4; do
  printf %s "$2" | dd of="$1" bs=64 seek="$block" conv=notrunc status=none || exit
done
printf %s "$2" | dd of="$5" bs=64 conv=notrunc status=none || exit
echo
[ "$3" = init ] || read -r _
"""


class ContainerRunner(Runtime):
    """Runs the containers of one node."""

    groups: Path | None = None  # below which each container gets a control group

    def __init__(self, simulated: Path) -> None:
        self._simulated = simulated
        self._running: dict[tuple[str, str], list[asyncio.subprocess.Process]] = {}
        # By pod: the directories that its first container gets, and the receipts that were there before it ran.
        self.receipts: dict[str, dict[Path, list[str]]] = {}

    async def open_sandbox(self, pod: Pod) -> None:
        """Start the sandbox of a pod."""
        if (pod.uid, "") not in self._running:
            self._running[pod.uid, ""] = [await self._started(pod, SANDBOX)]

    async def close_sandbox(self, pod: Pod) -> None:
        """End the sandbox of a pod."""
        await self._end(pod.uid, "")
        if self.groups is not None:
            groups.remove_pod(self.groups, pod.uid)

    async def start(
        self, pod: Pod, container: Container, devices: Devices, response: deviceplugin_pb2.ContainerAllocateResponse
    ) -> None:
        """Start a container; for an init container, wait until it has ended."""
        self.look(pod, container, devices)
        folders = (
            Path(mount.host_path)
            for mount in response.mounts
            if mount.container_path.startswith(RECEIPTS_IN_CONTAINERS)
        )
        self.receipts.setdefault(pod.uid, {folder: sorted(map(str, folder.glob("*"))) for folder in folders})
        running = self._running.setdefault((pod.uid, container.name), [])
        for uuid in (one.rpartition("=")[2] for ids in devices.values() for one in ids):  # of a claim: CDI names
            place = layout.find(self._simulated, uuid)
            memory = place.memory
            last = place.info().memory_bytes // BLOCK - 1
            blocks = " ".join(map(str, self.marked(pod, last)))
            words = (str(memory), mark(pod.uid), container.kind.value, blocks, str(place.chip))
            process = await self._started(pod, CONTAINER, *words)
            running.append(process)
            if container.kind is ContainerKind.INIT:
                await process.wait()

    def look(self, pod: Pod, container: Container, devices: Devices) -> None:
        """Called for each container just before it runs."""

    def marked(self, pod: Pod, last: int) -> tuple[int, ...]:
        """The blocks in which a container of this pod writes its mark; ``last`` is the last block."""
        del pod
        return (0, last // 2, last)

    async def stop(self, pod: Pod, container: Container) -> None:
        """Stop a container and wait until it has ended."""
        await self._end(pod.uid, container.name)

    async def clear_away(self) -> None:
        """End all containers and sandboxes."""
        for uid, name in list(self._running):
            await self._end(uid, name)

    def pids(self, pod: Pod, container: str) -> list[int]:
        """The processes of a container, one for each GPU."""
        return [process.pid for process in self._running[pod.uid, container]]

    async def _started(self, pod: Pod, script: str, *words: str) -> asyncio.subprocess.Process:
        if self.groups is not None:  # as with a runtime, the process is in its group before it opens anything
            script = f"echo $$ >{groups.of_container(self.groups, pod.uid)}/cgroup.procs || exit\n{script}"
        return await started(pod.uid, script, *words)

    async def _end(self, uid: str, name: str) -> None:
        for process in self._running.pop((uid, name), ()):
            if process.returncode is None:
                process.kill()
            await process.wait()


class ReadingRunner(ContainerRunner):
    """Reads all memory that a pod is about to get, as its first container could. No GPU is opened before it is granted.

    The service would take an earlier reader for a process that uses the GPU without a grant.
    """

    def __init__(self, simulated: Path) -> None:
        super().__init__(simulated)
        self.found: dict[str, int] = {}  # by pod: how many bytes were not zero before its first container started

    def look(self, pod: Pod, container: Container, devices: Devices) -> None:
        """Count the bytes, once for each pod."""
        del container
        names = [one.rpartition("=")[2] for ids in devices.values() for one in ids]
        if pod.uid not in self.found:
            memories = [layout.find(self._simulated, name).memory.read_bytes() for name in names]
            self.found[pod.uid] = sum(len(memory) - memory.count(0) for memory in memories)


def mark(pod: str) -> str:
    """The text that the containers of a pod write into memory."""
    return f"<{pod}>"


async def started(pod: str, script: str, *words: str) -> asyncio.subprocess.Process:
    """Start a process of a pod and wait for its first line."""
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", script, "sh", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", os.defpath), containers.MARK: pod},
        start_new_session=True,
    )
    line = b""
    try:
        line = await process.stdout.readline() if process.stdout is not None else b""
    finally:
        if not line:  # cancelled here: no other code would end the process
            with suppress(ProcessLookupError):  # it has ended by itself
                process.kill()
            await process.wait()
    if not line:
        raise RuntimeError(f"a process of pod {pod} did not start: {' '.join(words)}")
    return process
