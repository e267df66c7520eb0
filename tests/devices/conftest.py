"""Simulated GPUs of a test's own, and processes that end with it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scrubber.devices.base import DeviceHandling
from scrubber.devices.simulated import layout, open_check
from scrubber.devices.simulated.layout import GpuFiles
from scrubber.devices.simulated.simulated_backend import Simulated
from scrubber.devices.simulated.simulated_gpu import SimulatedGpu
from scrubber.node.processes import Processes

MEMORY_BYTES = 3 * 2**20 + 4096  # three whole chunks and a part of one


def end(pid: int) -> None:
    """Kill a process that is not our child, and wait until it is gone."""
    process = os.pidfd_open(pid)
    signal.pidfd_send_signal(process, signal.SIGKILL)
    poll = select.poll()
    poll.register(process, select.POLLIN)
    assert poll.poll(5000)
    os.close(process)


@dataclass(frozen=True)
class Bank:
    """Two small GPUs."""

    root: Path
    backend: Simulated

    @property
    def first(self) -> str:
        return self.backend.inventory()[0].uuid

    @property
    def second(self) -> str:
        return self.backend.inventory()[1].uuid

    def place(self, uuid: str) -> GpuFiles:
        return GpuFiles(Path(self.backend.address(uuid, DeviceHandling()).place))

    def gpu(self, uuid: str) -> SimulatedGpu:
        return SimulatedGpu(self.place(uuid).directory)

    def untouched(self) -> bool:
        """No process has any memory open. The kernel tells this without a search of all processes."""
        return all(open_check.is_open([str(memory)]) is False for memory in self.root.glob("gpu*/memory"))

    def holders(self) -> set[int]:
        observer = Processes(Path("/proc"), self.backend.container_of, whole_node=False)
        looks = observer.holders({str(memory): [str(memory)] for memory in self.root.glob("gpu*/memory")})
        return {holder.pid for holders in looks.values() for holder in holders or ()}


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    layout.create(tmp_path / "gpus", 2, MEMORY_BYTES)
    bank = Bank(tmp_path / "gpus", Simulated(tmp_path / "gpus"))
    yield bank
    for pid in () if bank.untouched() else bank.holders():
        end(pid)
    bank.backend.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Bank]:
    """Two small GPUs with device nodes; no loop device of them is left."""
    root = tmp_path / "nodes"
    layout.create(root, 2, MEMORY_BYTES)
    layout.make_nodes(root)
    bank = Bank(root, Simulated(root))
    if not bank.backend.numbers(bank.first):
        pytest.skip("takes root, and loop devices")
    yield bank
    for place in layout.places(root):
        layout.remove_node(place)
    bank.backend.close()


Launch = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start a Python process that prints a line once it is ready; it is ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str, *arguments: object, **environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | environment)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline(), "the process did not get ready"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
