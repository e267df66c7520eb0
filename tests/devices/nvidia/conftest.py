"""NVIDIA GPUs of a test's own: a stand-in for NVML, a host's files, and the backend that looks at both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.nvidia.health import listener, nvml_events
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library
from scrubber.node.kernellog import KernelLog
from tests.devices.nvidia.health.hearing import SOON, await_call, ours
from tests.fakes.kmsg import Kmsg
from tests.fakes.nvml.fixtures import Stage, nvml, nvml_build, stage
from tests.fakes.nvml.host import Root
from tests.fakes.nvml.machine import Gpu, Machine

__all__ = ["nvml", "nvml_build", "stage"]  # fixtures

INITIAL = "pid:[4026531836]"
RUNNING = range(4700, 4800)  # the numbers of processes that there are


@dataclass(frozen=True)
class Rig:
    """A machine, its host's files, and what sees both."""

    machine: Machine
    root: Root
    host: Host
    library: Library

    def backend(self, **more) -> Nvidia:
        """A new one: it has seen nothing yet."""
        living = {"pod-1": 1}
        return Nvidia(self.host, lambda pid: f"pod-{pid}", lambda: living, self.settings, self.library, **more)

    @property
    def settings(self) -> Path:
        """Where workers keep what they found."""
        return self.root.path / "state/settings"

    def gpu(self, number: int) -> Gpu:
        return self.machine.gpu(number)

    def cut(self, number: int, *slices) -> tuple[str, ...]:
        """A GPU into slices, as the driver shows it."""
        return self.gpu(number).cut(slices)

    def reload_driver(self) -> None:
        """The same version of it, loaded anew."""
        module = self.host.sys_module
        module.rename(module.with_name("gone"))  # the number of a folder that is there is given to no other
        module.mkdir()


def namespace(host: Host, name: str) -> None:
    """In which process namespace we are."""
    link = host.proc / "self/ns/pid"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(name)


def boot(host: Host, name: str) -> None:
    """Which start of the node this is."""
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
    """A backend that listens, and is known to be in NVML's wait; ended with the test, and no thread left of it."""
    monkeypatch.setattr(nvml_events, "WAIT_MS", 40)  # shorter turns, so that tests end sooner
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
