"""The sign of on-chip memory with more uncorrectable errors than the driver tolerates."""

from __future__ import annotations

from ctypes import byref

import pynvml

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.nvidia.nvml import Handle, Session


def read(nvml: Session, gpu: Handle) -> bool:
    """Whether the driver reports that the threshold is exceeded; False if not supported."""
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    known = nvml.ask_optional(pynvml.nvmlDeviceGetSramEccErrorStatus, gpu, byref(status)) is not None
    return known and bool(status.bThresholdExceeded)


def judge(exceeded: bool) -> Sign | None:  # noqa: FBT001 - the only reading
    """The sign, if the threshold is exceeded."""
    detail = "it had more uncorrectable errors in its memory on the chip than the driver tolerates"
    return Sign(AilmentKind.SRAM, detail) if exceeded else None
