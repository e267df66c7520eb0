"""Temperature and power of whole GPUs, for metrics only.

For Ada and later, NVIDIA recommends the fields 193 to 196 instead of thresholds. Those fields are distances from a
limit, not temperatures. So without a threshold from the driver, no threshold is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pynvml

from scrubber.devices.base import DeviceError, Readings
from scrubber.devices.nvidia.nvml import Handle, Session

_MILLI = 1000


def of_all(nvml: Session, in_reset: Callable[[str], bool]) -> dict[str, Readings]:
    """Readings by UUID. A GPU that is ``in_reset`` is not asked; a GPU that cannot be read is left out."""
    found: dict[str, Readings] = {}
    for index in range(nvml.ask(pynvml.nvmlDeviceGetCount)):
        with suppress(DeviceError):
            gpu = nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid: str = nvml.ask(pynvml.nvmlDeviceGetUUID, gpu)
            if not in_reset(uuid):
                found[uuid] = _read(nvml, gpu, index)
    return found


def _read(nvml: Session, gpu: Handle, index: int) -> Readings:
    slowdown = nvml.ask_optional(
        pynvml.nvmlDeviceGetTemperatureThreshold, gpu, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    )
    milliwatts = nvml.ask_optional(pynvml.nvmlDeviceGetPowerUsage, gpu)
    return Readings(
        index=index,
        celsius=_celsius(nvml, gpu),
        slowdown_celsius=slowdown,
        watts=None if milliwatts is None else milliwatts / _MILLI,
    )


def _celsius(nvml: Session, gpu: Handle) -> int | None:
    """The temperature, by the older call if the driver has no newer one: NVIDIA will remove the older call."""
    for function in (pynvml.nvmlDeviceGetTemperatureV, pynvml.nvmlDeviceGetTemperature):
        celsius: int | None = nvml.ask_optional(function, gpu, pynvml.NVML_TEMPERATURE_GPU)
        if celsius is not None:
            return celsius
    return None
