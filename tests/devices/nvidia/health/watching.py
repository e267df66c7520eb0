"""Reads the signs of a GPU when a test says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from scrubber.core.model import Sign
from scrubber.devices.nvidia.health.best_seen import BestSeenFile
from scrubber.devices.nvidia.health.watch import EVERY, SignWatch

UP, DOWN = "1 2 4 00000000:05:00.0", "0 2 4 00000000:05:00.0"


@dataclass
class SignReader:
    """A watch over the GPUs of a rig, with a clock that a test moves."""

    rig: Any
    boot: str = "boot-1"
    now: float = 1000.0
    watch: SignWatch = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new service: it remembers what is on the disk."""
        self.watch = SignWatch(BestSeenFile(self.rig.settings.parent / "seen", lambda: self.boot), lambda: self.now)

    def look(self, number: int = 0, *, whole: bool = True) -> tuple[Sign, ...]:
        gpu = self.rig.gpu(number)
        with self.rig.library.session() as nvml:
            return self.watch.signs(nvml, gpu.uuid, nvml.handle(gpu.uuid), whole=whole)

    def later(self, seconds: float = EVERY) -> tuple[Sign, ...]:
        self.now += seconds
        return self.look()


@pytest.fixture
def reader(rig) -> SignReader:
    """The GPU was well when it was looked at first."""
    reader = SignReader(rig)
    assert reader.look() == ()
    return reader


def change(rig, state: dict[str, object]) -> dict[str, object]:
    """What it was before."""
    gpu = rig.gpu(0)
    before = {key: gpu.get(key) for key in state}
    gpu.set(state)
    return before
