"""What whole GPUs measure is what the driver tells, and nothing where it does not."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pynvml
import pytest

from scrubber.devices.base import DriverClosedError, Readings
from scrubber.devices.nvidia.reset import locks
from tests.devices.nvidia import bench
from tests.fakes.nvml.machine import Slice

IDLE = Readings(0, 31, 90, 76.0)
UNTOLD = {
    "temperature.0": replace(IDLE, celsius=None),
    "temperature.limit.1": replace(IDLE, slowdown_celsius=None),
    "power.usage": replace(IDLE, watts=None),
}


def first(rig) -> Readings | None:
    """What the first GPU measures."""
    found: Readings | None = rig.backend().readings().get(rig.gpu(0).uuid)
    return found


def test_a_gpu_tells_degrees_and_watts(rig) -> None:
    rig.gpu(0).set({"power.usage": 76543})
    assert first(rig) == Readings(0, 31, 90, 76.543)


@pytest.mark.parametrize("key", UNTOLD)
def test_a_value_that_a_gpu_does_not_report_is_none(rig, key: str) -> None:
    rig.gpu(0).set({key: None})
    assert first(rig) == UNTOLD[key]


def test_a_reading_of_zero_stays_zero(rig) -> None:
    rig.gpu(0).set({"temperature.0": 0, "power.usage": 0})
    assert first(rig) == Readings(0, 0, 90, 0.0)


def test_a_distance_from_a_limit_is_no_temperature(rig) -> None:
    rig.gpu(0).set({"temperature.limit.1": None, "field.194": 2})
    assert first(rig) == Readings(0, 31, None, 76.0)


def test_an_older_driver_is_asked_by_the_older_call(rig, nvml_build, monkeypatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(nvml_build(without=("nvmlDeviceGetTemperatureV",)))))
    assert first(rig) == IDLE


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


def test_there_are_no_readings_while_the_driver_is_released(rig) -> None:
    backend = rig.backend()
    backend.release_driver()
    with pytest.raises(DriverClosedError):
        backend.readings()
    backend.reacquire_driver()
    assert backend.readings()[rig.gpu(0).uuid] == IDLE
