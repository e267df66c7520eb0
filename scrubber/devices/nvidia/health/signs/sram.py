"""Memory on the chip that had more uncorrectable errors than the driver bears."""

from __future__ import annotations

from ctypes import byref

import pynvml

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.nvidia.nvml import Handle, Session


def read(nvml: Session, gpu: Handle) -> bool:
    """Whether the driver says so; a GPU that does not know, says nothing bad by that."""
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    known = nvml.told(pynvml.nvmlDeviceGetSramEccErrorStatus, gpu, byref(status)) is not None
    return known and bool(status.bThresholdExceeded)


def judge(exceeded: bool) -> Sign | None:  # noqa: FBT001 - it is all that there is to judge
    """What that means."""
    told = "it had more uncorrectable errors in its memory on the chip than the driver bears"
    return Sign(AilmentKind.SRAM, told) if exceeded else None
