"""The sign of a GPU that has left its NVSwitch fabric, or whose fabric reports a fault."""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass

import pynvml

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.nvidia.nvml import Handle, Session

_YES = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE  # in all of these; 0 is not reported, 2 is no
_FAULTS = {
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW: "its bandwidth is degraded",
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY: "its routes are being recovered",
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY: "its routes are unhealthy",
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY: "it recovers from an access that timed out",
}


@dataclass(frozen=True, slots=True)
class FabricReading:
    """The numbers of NVML. ``status`` and ``health`` are valid once the state is completed."""

    state: int = pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
    status: int = pynvml.NVML_SUCCESS
    health: int = 0

    @property
    def joined(self) -> bool:
        """Whether it has been through its registration, well or not."""
        return bool(self.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED)


def read(nvml: Session, gpu: Handle) -> FabricReading:
    """Read with version 2 of the structure: version 1 has no health, and older drivers do not support version 3."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if nvml.ask_optional(pynvml.nvmlDeviceGetGpuFabricInfoV, gpu, byref(info)) is None:
        return FabricReading()
    return FabricReading(int(info.state), int(info.status), int(info.healthMask))


def judge(reading: FabricReading, *, joined_before: bool) -> Sign | None:
    """A GPU has left its fabric if it was in one since the node booted, and is not, or does not report it any more.

    A GPU that was never in a fabric is no fault: a virtual machine may have none. If there should be one, CUDA does not
    start, so the GPU is never proven clean.
    """
    if not reading.joined:
        return Sign(AilmentKind.FABRIC, "it has left its fabric") if joined_before else None
    if reading.status != pynvml.NVML_SUCCESS:
        return Sign(AilmentKind.FABRIC, f"it could not join its fabric: error {reading.status} of NVML")
    faults = [words for shift, words in _FAULTS.items() if (reading.health >> shift) & 3 == _YES]
    if (wrong := _configuration(reading.health)) > pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE:
        faults.append(f"its configuration is wrong (kind {wrong})")
    return Sign(AilmentKind.FABRIC, f"in its fabric {'; '.join(faults)}") if faults else None


def _configuration(health: int) -> int:
    mask = int(pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION)
    return health >> int(pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION) & mask
