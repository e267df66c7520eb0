"""NVIDIA GPUs of a test's own: a stand-in for NVML, a host's files, and the backend that looks at both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.library import Library
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
        living = frozenset({"pod-1"})
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
