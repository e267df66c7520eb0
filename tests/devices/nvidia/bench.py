"""A GPU on the bench: what a worker child would touch, over a stand-in for NVML.

Nothing real is ever reset here: NVML, nvidia-smi and /sys are stand-ins under a root of the test's own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scrubber.core.model import Holder
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.gpu import NvidiaGpu
from scrubber.devices.nvidia.reset import locks, reset
from scrubber.devices.nvidia.reset.pending_restore import PendingRestores
from scrubber.devices.nvidia.reset.preconditions import Patience, ResetTarget
from scrubber.devices.nvidia.settings import settings
from scrubber.devices.nvidia.settings.settings import StoredSettings
from tests.fakes.nvml.machine import Slice

SHORT = Patience(leaving=0.2, tool=30.0, coming_back=0.3)
NOT_OURS = ("remove", "driver/unbind", "rescan")


@pytest.fixture
def gpu(rig):
    """The first GPU, which nothing keeps ready; whatever happens, it is never removed or taken from its driver."""
    rig.gpu(0).set(persistence_mode=0)
    forbidden = [rig.root.pci(rig.gpu(0)) / name for name in NOT_OURS]
    for place in forbidden:
        place.parent.mkdir(exist_ok=True)
        place.write_text("")
    yield rig.gpu(0)
    assert [place.read_text() for place in forbidden] == [""] * len(NOT_OURS)


@pytest.fixture
def cut(rig, gpu) -> tuple[str, ...]:  # noqa: ARG001 - what is cut must not be kept ready
    """The first GPU in three slices."""
    found: tuple[str, ...] = rig.cut(0, Slice("3g.71gb"), Slice("2g.35gb"), Slice("1g.18gb"))
    return found


@pytest.fixture
def root(monkeypatch) -> None:
    """We are root, whoever runs the tests."""
    monkeypatch.setattr("os.geteuid", lambda: 0)


def nobody() -> tuple[Holder, ...]:
    """A look at the processes that found no user."""
    return ()


def somebody(pid: int = 4711, command: str = "train") -> tuple[Holder, ...]:
    """A look that found one."""
    return (Holder(pid, 1.0, command, None),)


def place(rig, number: int, **more: object) -> str:
    """Where it is, as the service says it."""
    gpu = rig.gpu(number)
    said = {
        "uuid": gpu.uuid,
        "root": str(rig.host.root),
        "pci_address": gpu.pci,
        "minor": gpu.minor,
        "parent": None,
        "baseline": None,
        "means": ["nvidia-smi", "function"],
        "slices": "wait",
        "settings": {},
        "resets": str(rig.settings.parent / "resets"),
        "locks": [gpu.uuid],
    }
    return json.dumps(said | more)


def touch(rig, number: int, users=nobody, **more: object) -> NvidiaGpu:
    """A GPU, or a slice of it, under a worker child's hands."""
    return NvidiaGpu(place(rig, number, **more), users, rig.library)


def lock(rig, number: int = 0) -> Path:
    """What whoever resets that GPU holds."""
    return locks.file_of(rig.settings.parent / "resets", rig.gpu(number).uuid)


def target(rig, **more):
    """The first GPU, to be reset by somebody who may and has little patience."""
    gpu = rig.gpu(0)
    means = ("nvidia-smi", "function")
    notes = PendingRestores(rig.settings, gpu.uuid)
    plain = ResetTarget(
        gpu.uuid, gpu.pci, rig.host, means, nobody, rig.library, (lock(rig),), notes, privileged=True, patience=SHORT
    )
    return replace(plain, **more)


def kept(tmp_path: Path) -> Path:
    """A file for settings, in a folder that is not there yet."""
    return tmp_path / "state" / "settings" / "gpu.json"


def captured(rig) -> StoredSettings:
    """How the first GPU is set now."""
    with rig.library.session() as session:
        return settings.capture(session, rig.gpu(0).uuid)


def file(rig, name: str) -> Path:
    """What the kernel shows of the first GPU."""
    folder: Path = rig.root.pci(rig.gpu(0))
    return folder / name


def by_kernel(rig) -> bool:
    """Whether the kernel's own reset was asked for."""
    return file(rig, "reset").read_text() == "1"


def by_tool(rig) -> list[str]:
    """What nvidia-smi was asked for."""
    return [about for _, call, about in rig.machine.calls() if call == "nvidia-smi"]


def refused(rig, **more: object) -> str:
    """Why nothing was done."""
    with pytest.raises(DeviceError) as caught:
        reset.reset(target(rig, **more))
    assert by_tool(rig) == []
    assert not by_kernel(rig)
    return str(caught.value)
