"""A GPU that has left the fabric of NVSwitches, or that the fabric calls ill."""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass

import pynvml

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.nvidia.nvml import Handle, Session

_YES = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE  # in all of these; 0 is not told, 2 is no
_FAULTS = {
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW: "its bandwidth is degraded",
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY: "its routes are being recovered",
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY: "its routes are unhealthy",
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY: "it recovers from an access that timed out",
}


@dataclass(frozen=True, slots=True)
class FabricReading:
    """As NVML numbers them. ``status`` and ``health`` say something once the state is completed."""

    state: int = pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
    status: int = pynvml.NVML_SUCCESS
    health: int = 0

    @property
    def joined(self) -> bool:
        """Whether it has been through its registration, well or not."""
        return bool(self.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED)


def read(nvml: Session, gpu: Handle) -> FabricReading:
    """The second form of the question: the first tells no health, and older drivers know no third."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if nvml.told(pynvml.nvmlDeviceGetGpuFabricInfoV, gpu, byref(info)) is None:
        return FabricReading()
    return FabricReading(int(info.state), int(info.status), int(info.healthMask))


def judge(reading: FabricReading, *, joined_before: bool) -> Sign | None:
    """One that never was in a fabric since the node was started need not be in one: in a guest, none may be there.

    One that was, and is not or does not tell any more, has left it.

    Where there should be one, CUDA does not start before, so that no such GPU is ever proven clean.
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
