"""Helpers for tests of one GPU as a worker child handles it.

No real GPU is ever reset: NVML, nvidia-smi and /sys are stand-ins in a folder of the test.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ground.documents import strict_json
from scrubber.core.model import Holder
from scrubber.cuda.selftest import Clock
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import locks, preconditions, reset, settings
from scrubber.devices.nvidia.address import WorkerTarget
from scrubber.devices.nvidia.gpu import NvidiaGpu
from scrubber.devices.nvidia.preconditions import Patience, ResetTarget
from scrubber.devices.nvidia.settings import StoredSettings
from tests.fakes.nvml.machine import Slice

SHORT = Patience(leaving=0.2, tool=30.0, coming_back=0.3)
NOT_OURS = ("remove", "driver/unbind", "rescan")


@pytest.fixture
def gpu(rig):
    """The first GPU, without persistence mode. Checks that the test never removes or unbinds it."""
    rig.gpu(0).set(persistence_mode=0)
    forbidden = [rig.root.pci(rig.gpu(0)) / name for name in NOT_OURS]
    for place in forbidden:
        place.parent.mkdir(exist_ok=True)
        place.write_text("")
    yield rig.gpu(0)
    assert [place.read_text() for place in forbidden] == [""] * len(NOT_OURS)


@pytest.fixture
def cut(rig, gpu) -> tuple[str, ...]:  # noqa: ARG001 - a sliced GPU must not be persistent
    """The first GPU, divided into three slices."""
    found: tuple[str, ...] = rig.cut(0, Slice("3g.71gb"), Slice("2g.35gb"), Slice("1g.18gb"))
    return found


@pytest.fixture
def root(monkeypatch) -> None:
    """Pretend that the test runs as root."""
    monkeypatch.setattr(preconditions, "is_root", lambda: True)


def no_holders() -> tuple[Holder, ...]:
    """An observation without holders."""
    return ()


def one_holder(pid: int = 4711, command: str = "train") -> tuple[Holder, ...]:
    """An observation with one holder."""
    return (Holder(pid, 1.0, command, None),)


def place(rig, number: int, **more: object) -> str:
    """The address of a GPU, as the service passes it to a worker."""
    gpu = rig.gpu(number)
    target = WorkerTarget(
        gpu.uuid,
        str(rig.host.root),
        gpu.pci,
        gpu.minor,
        parent=None,
        first_seen=str(rig.settings / f"{gpu.uuid}.json"),
        resets=str(rig.settings.parent / "resets"),
        locks=(gpu.uuid,),
    )
    return json.dumps(json.loads(strict_json.encode(target)) | more)


class Skipping:
    """A clock on which pauses take no time; ``then`` runs in each pause."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.skipped = 0.0
        self._then = then

    @property
    def clock(self) -> Clock:
        return Clock(lambda: time.monotonic() + self.skipped, self._pause)

    def _pause(self, seconds: float) -> None:
        self.skipped += seconds
        self._then()


def touch(rig, number: int, holders=no_holders, **more: Any) -> NvidiaGpu:  # noqa: ANN401 - fields of a target
    """A GPU or slice, as a worker child opens it. Its pauses take no time."""
    return NvidiaGpu(place(rig, number, **more), holders, rig.library, clock=Skipping().clock)


def touch_for(rig, skipping: Skipping, **more: Any) -> NvidiaGpu:  # noqa: ANN401 - see ``touch``
    """The first GPU, on this clock."""
    return NvidiaGpu(place(rig, 0, **more), no_holders, rig.library, clock=skipping.clock)


def slice_of(rig, uuid: str, holders=no_holders, **more: Any) -> NvidiaGpu:  # noqa: ANN401 - see ``touch``
    """A slice of the first GPU, as a worker child opens it."""
    return touch(rig, 0, holders, uuid=uuid, parent=rig.gpu(0).uuid, **more)


def there(rig) -> set[str]:
    """The slices of the first GPU."""
    state = rig.machine.read()
    return {value for key, value in state.items() if key.startswith("gpu.0.mig.") and key.endswith(".uuid")}


def lock(rig, number: int = 0) -> Path:
    """The lock file of that GPU."""
    return locks.file_of(rig.settings.parent / "resets", rig.gpu(number).uuid)


def target(rig, root: Path | None = None, **more):
    """The first GPU as a reset target, with root rights and short time limits. ``root``: of the host."""
    gpu = strict_json.decode(WorkerTarget, place(rig, 0, root=str(root or rig.host.root)))
    return replace(ResetTarget(gpu, no_holders, rig.library, privileged=True, patience=SHORT), **more)


def kept(tmp_path: Path) -> Path:
    """A file for settings, in a folder that does not exist yet."""
    return tmp_path / "state" / "settings" / "gpu.json"


def captured(rig) -> StoredSettings:
    """The settings of the first GPU now."""
    with rig.library.session() as session:
        return settings.capture(session, rig.gpu(0).uuid)


def file(rig, name: str) -> Path:
    """A file of the first GPU in sysfs."""
    folder: Path = rig.root.pci(rig.gpu(0))
    return folder / name


def by_tool(rig) -> list[str]:
    """The arguments of each call of nvidia-smi."""
    return [about for _, call, about in rig.machine.calls() if call == "nvidia-smi"]


def refused(rig, **more: Any) -> str:  # noqa: ANN401 - see ``touch``
    """The error of a reset that changes nothing."""
    with pytest.raises(DeviceError) as caught:
        reset.reset(target(rig, **more))
    assert by_tool(rig) == []
    return str(caught.value)
