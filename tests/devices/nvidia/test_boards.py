"""What whole GPUs measure is what the driver tells, and nothing where it does not."""

from __future__ import annotations

from dataclasses import replace

import pynvml
import pytest

from scrubber.devices.base import Readings
from scrubber.devices.nvidia import locks
from tests.devices.nvidia import bench
from tests.fakes.nvml.machine import Slice

IDLE = Readings(0, 31, 90, 76.0)
READINGS: dict[str, tuple[dict[str, object], Readings]] = {
    "degrees and watts": ({"power.usage": 76543}, replace(IDLE, watts=76.543)),
    "zeros": ({"temperature.0": 0, "power.usage": 0}, replace(IDLE, celsius=0, watts=0.0)),
    "no temperature": ({"temperature.0": None}, replace(IDLE, celsius=None)),
    "no threshold": ({"temperature.limit.1": None}, replace(IDLE, slowdown_celsius=None)),
    "a distance from a limit": ({"temperature.limit.1": None, "field.194": 2}, replace(IDLE, slowdown_celsius=None)),
    "no power": ({"power.usage": None}, replace(IDLE, watts=None)),
    "an older driver": ({"fail.nvmlDeviceGetTemperatureV": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}, IDLE),
}


def first(rig) -> Readings | None:
    """What the first GPU measures."""
    found: Readings | None = rig.backend().readings().get(rig.gpu(0).uuid)
    return found


@pytest.mark.parametrize(("state", "readings"), READINGS.values(), ids=READINGS)
def test_readings_are_what_the_driver_reports(rig, state, readings: Readings) -> None:
    rig.gpu(0).set(state)
    assert first(rig) == readings


def test_a_sliced_gpu_has_readings_and_its_slices_none(rig) -> None:
    uuids, gpus = rig.cut(0, Slice(), Slice()), rig.machine.gpus
    found = rig.backend().readings()
    assert found[rig.gpu(0).uuid] == IDLE
    assert found.keys() == {gpu.uuid for gpu in gpus}
    assert not found.keys() & {*uuids}


@pytest.mark.parametrize(
    "state",
    [{"lost": 1}, {"reset_required": 1}, {"fail.nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_UNKNOWN}],
    ids=["lost", "reset required", "fails"],
)
def test_a_gpu_that_cannot_be_read_is_left_out_alone(rig, state) -> None:
    rig.gpu(1).set(state)
    found = rig.backend().readings()
    assert [each.index for each in found.values()] == [0, *range(2, 8)]


def test_a_gpu_in_a_reset_is_not_asked(rig) -> None:
    """Its tool has outlived its worker: NVML is open again, and what the GPU says meanwhile is no news."""
    backend = rig.backend()
    with locks.claimed(bench.lock(rig, 1)):
        found = backend.readings()
    asked = [about for _, call, about in rig.machine.calls() if call == "nvmlDeviceGetPowerUsage"]
    assert rig.gpu(1).uuid not in found
    assert len(found) == len(asked) == 7
