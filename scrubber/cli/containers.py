"""What runs the containers of a kubelet stand-in: real processes that use simulated GPUs.

A pod's sandbox is there before its containers and is gone after them, as with a real runtime. A container holds the
memory of its GPUs open and has written its pod's mark into it: whoever finds that mark later has found a leak.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from plugin.kubelet_api import deviceplugin_pb2
from plugin.testing.pods import Container, Kind, Pod
from plugin.testing.runtime import Devices
from scrubber.devices.simulated import containers, layout

BLOCK = 64  # bytes: a mark fits into one
# Opens the memory and writes the mark into some blocks; then says so and stays, unless it is an init container's.
SCRIPT = """
exec 9<>"$1" || exit
for block in $4; do
  printf %s "$2" | dd of="$1" bs=64 seek="$block" conv=notrunc status=none || exit
done
echo
[ "$3" = init ] || exec sleep infinity >&-
"""


class Containers:
    """Runs the containers of a node."""

    def __init__(self, simulated: Path) -> None:
        """Nothing runs."""
        self._simulated = simulated
        self._running: dict[tuple[str, str], list[asyncio.subprocess.Process]] = {}

    async def open_sandbox(self, pod: Pod) -> None:
        """The pod is there from now on."""
        if (pod.uid, "") not in self._running:
            self._running[pod.uid, ""] = [await _spawn(pod.uid, "sleep", "infinity")]

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
            words = (str(memory), mark(pod.uid), container.kind.value, f"0 {last // 2} {last}")
            process = await _spawn(pod.uid, "sh", "-c", SCRIPT, "sh", *words)
            running.append(process)
            if process.stdout is None or not await process.stdout.readline():
                raise RuntimeError(f"container {container.name} could not use {memory}")
            if container.kind is Kind.INIT:
                await process.wait()

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


async def _spawn(pod: str, *command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", os.defpath), containers.MARK: pod},
        start_new_session=True,
    )
