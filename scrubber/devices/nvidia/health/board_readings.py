"""What whole GPUs measure of themselves: temperature and power. Nothing is judged by it.

For Ada and later NVIDIA would rather have the fields 193 to 196 read than thresholds. They tell distances from a limit,
which are no temperatures and are not made into any here: where the threshold itself is not told, none is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pynvml

from scrubber.devices.base import DeviceError, Readings
from scrubber.devices.nvidia.nvml import Handle, Session

_MILLI = 1000


def of_all(nvml: Session, in_reset: Callable[[str], bool]) -> dict[str, Readings]:
    """By UUID. One that is ``in_reset`` is not asked; one that cannot be read is left out."""
    found: dict[str, Readings] = {}
    for index in range(nvml.ask(pynvml.nvmlDeviceGetCount)):
        with suppress(DeviceError):
            gpu = nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid: str = nvml.ask(pynvml.nvmlDeviceGetUUID, gpu)
            if not in_reset(uuid):
                found[uuid] = _read(nvml, gpu, index)
    return found


def _read(nvml: Session, gpu: Handle, index: int) -> Readings:
    slowdown = nvml.told(pynvml.nvmlDeviceGetTemperatureThreshold, gpu, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    milliwatts = nvml.told(pynvml.nvmlDeviceGetPowerUsage, gpu)
    return Readings(
        index=index,
        celsius=_celsius(nvml, gpu),
        slowdown_celsius=slowdown,
        watts=None if milliwatts is None else milliwatts / _MILLI,
    )


def _celsius(nvml: Session, gpu: Handle) -> int | None:
    """By the older call where there is no other: NVIDIA will take it away."""
    for question in (pynvml.nvmlDeviceGetTemperatureV, pynvml.nvmlDeviceGetTemperature):
        told: int | None = nvml.told(question, gpu, pynvml.NVML_TEMPERATURE_GPU)
        if told is not None:
            return told
    return None
