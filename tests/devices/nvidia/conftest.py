"""Fixtures: a stand-in for NVML, the files of a host, and the backend that reads both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.nvidia.health import listener
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library
from scrubber.node.kernellog import KernelLog
from scrubber.node.node_containers import Containers
from tests.devices.nvidia.health.events_seen import SOON, await_call, ours
from tests.fakes.kmsg import Kmsg
from tests.fakes.nvml.fixtures import Stage, nvml, nvml_build, stage
from tests.fakes.nvml.host import Root
from tests.fakes.nvml.machine import Gpu, Machine

__all__ = ["nvml", "nvml_build", "stage"]  # fixtures

INITIAL = "pid:[4026531836]"
RUNNING = range(4700, 4800)  # the pids of running processes


class Pods(Containers):
    """Each process is in a pod of its own."""

    def of(self, pid: int) -> str:
        return f"pod-{pid}"

    def living(self, wanted: Collection[str] = ()) -> dict[str, int]:  # noqa: ARG002 - as of the base
        return {"pod-1": 1}

    def member(self, pod: str) -> int | None:
        return self.living().get(pod)


@dataclass(frozen=True)
class Rig:
    """A machine, the files of its host, and the library that reads both."""

    machine: Machine
    root: Root
    host: Host
    library: Library

    def backend(self, **more) -> Nvidia:
        """A new backend, which has read nothing yet."""
        return Nvidia(self.host, Pods(self.host.proc), self.settings, self.library, **more)

    def seen(self) -> Nvidia:
        """A new backend that has read the inventory."""
        backend = self.backend()
        backend.inventory()
        return backend

    def set_all(self, changes: Mapping[str, object] | None = None, /, **more: object) -> None:
        """Change the state of every GPU."""
        for gpu in self.machine.gpus:
            gpu.set(changes, **more)

    @property
    def settings(self) -> Path:
        """The folder in which workers store the settings first seen."""
        return self.root.path / "state/settings"

    def gpu(self, number: int) -> Gpu:
        return self.machine.gpu(number)

    def cut(self, number: int, *slices) -> tuple[str, ...]:
        """Divide a GPU into slices; returns their UUIDs."""
        return self.gpu(number).cut(slices)

    def reload_driver(self) -> None:
        """Load the same version of the driver again."""
        module = self.host.sys_module
        module.rename(module.with_name("gone"))  # an existing folder keeps its inode number
        module.mkdir()


def namespace(host: Host, name: str) -> None:
    """Set the pid namespace of this process."""
    link = host.proc / "self/ns/pid"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(name)


def boot(host: Host, name: str) -> None:
    """Set the ID of this boot."""
    file = host.proc / "sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{name}\n")


@pytest.fixture
def rig(stage: Stage, nvml: Machine) -> Rig:
    """Eight H200 on switches, seen from the initial process namespace."""
    host = Host(stage.root.path, stage.root.path / "proc")
    namespace(host, INITIAL)
    boot(host, "boot-1")
    for pid in RUNNING:
        (host.proc / str(pid)).mkdir()
    return Rig(nvml, stage.root, host, Library())


@pytest.fixture
def kmsg(rig) -> Iterator[Kmsg]:
    """The log of the rig's kernel."""
    made = Kmsg(rig.host.dev / "kmsg")
    yield made
    made.close()


@pytest.fixture
def listen(rig, monkeypatch) -> Iterator[Callable[..., Nvidia]]:
    """Start a backend that waits for NVML events. Afterwards close it and check for leftover threads."""
    monkeypatch.setattr(listener, "WAIT_MS", 40)  # shorter turns, so that tests end sooner
    monkeypatch.setattr(listener, "JOIN_TIMEOUT", SOON / 1000)
    before = ours()
    made = []

    def begin(*, kernel: KernelLog | bool = True, **more) -> Nvidia:
        log = KernelLog(rig.host.dev / "kmsg") if kernel is True else kernel or None
        backend: Nvidia = rig.backend(kernel=log, **more)
        backend.inventory()
        made.append(backend)
        backend.alarm()
        await_call(rig, "nvmlEventSetWait_v2")
        return backend

    yield begin
    for backend in made:
        backend.close()
    assert ours() <= before
