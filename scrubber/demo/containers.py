"""What runs the containers of a kubelet stand-in: real processes that use simulated GPUs.

A pod's sandbox is there before its containers and is gone after them, as with a real runtime. A container holds the
memory of its GPUs open and has written its pod's mark into it: whoever finds that mark later has found a leak.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from plugin.kubelet_api import deviceplugin_pb2
from plugin.testing.pods import Container, ContainerKind, Pod
from plugin.testing.runtime import Devices
from scrubber.devices.simulated import containers, layout

BLOCK = 64  # bytes: a mark fits into one
# A process that becomes another program has no environment, and so no container, for a moment: these stay what they are
# from the line that they say on, until they are ended or their standard input is.
SANDBOX = "echo; read -r _"
# Opens the memory and writes the mark into some blocks; then says so and stays, unless it is an init container's.
CONTAINER = """
exec 9<>"$1" || exit
for block in $4; do
  printf %s "$2" | dd of="$1" bs=64 seek="$block" conv=notrunc status=none || exit
done
echo
[ "$3" = init ] || read -r _
"""


class ContainerRunner:
    """Runs the containers of a node."""

    def __init__(self, simulated: Path) -> None:
        """Nothing runs."""
        self._simulated = simulated
        self._running: dict[tuple[str, str], list[asyncio.subprocess.Process]] = {}

    async def open_sandbox(self, pod: Pod) -> None:
        """The pod is there from now on."""
        if (pod.uid, "") not in self._running:
            self._running[pod.uid, ""] = [await _started(pod.uid, SANDBOX)]

    async def close_sandbox(self, pod: Pod) -> None:
        """The pod has gone."""
        await self._end(pod.uid, "")

    async def start(
        self, pod: Pod, container: Container, devices: Devices, response: deviceplugin_pb2.ContainerAllocateResponse
    ) -> None:
        """Return as soon as it runs; for an init container, as soon as it has ended."""
        del response  # what a real runtime would mount; a simulated GPU is a file that is there for all
        running = self._running.setdefault((pod.uid, container.name), [])
        for uuid in (uuid for ids in devices.values() for uuid in ids):
            memory = layout.find(self._simulated, uuid).memory
            last = memory.stat().st_size // BLOCK - 1
            blocks = " ".join(map(str, self.marked(pod, last)))
            words = (str(memory), mark(pod.uid), container.kind.value, blocks)
            process = await _started(pod.uid, CONTAINER, *words)
            running.append(process)
            if container.kind is ContainerKind.INIT:
                await process.wait()

    def marked(self, pod: Pod, last: int) -> tuple[int, ...]:
        """The blocks, the last of which is ``last``, that a container of this pod writes its mark into."""
        del pod
        return (0, last // 2, last)

    async def stop(self, pod: Pod, container: Container) -> None:
        """Return when it has ended."""
        await self._end(pod.uid, container.name)

    async def clear_away(self) -> None:
        """End everything that still runs."""
        for uid, name in list(self._running):
            await self._end(uid, name)

    def pids(self, pod: Pod, container: str) -> list[int]:
        """The processes of a container, one a GPU."""
        return [process.pid for process in self._running[pod.uid, container]]

    async def _end(self, uid: str, name: str) -> None:
        for process in self._running.pop((uid, name), ()):
            if process.returncode is None:
                process.kill()
            await process.wait()


def mark(pod: str) -> str:
    """What the containers of a pod write into memory."""
    return f"<{pod}>"


async def _started(pod: str, script: str, *words: str) -> asyncio.subprocess.Process:
    """A process of the pod, as soon as it has said its line."""
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", script, "sh", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", os.defpath), containers.MARK: pod},
        start_new_session=True,
    )
    said = b""
    try:
        said = await process.stdout.readline() if process.stdout is not None else b""
    finally:
        if not said:  # cut off here, nobody would ever end it: the pod would seem to be there for good
            process.kill()
            await process.wait()
    if not said:
        raise RuntimeError(f"a process of pod {pod} did not start: {' '.join(words)}")
    return process
