"""Clocks that the hardware holds down, for heat or for want of power. Those that the driver holds down are normal."""

from __future__ import annotations

import pynvml

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.nvidia.nvml import Handle, Session

_FAULTS = {
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "it is too hot: the hardware holds its clocks down",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "its power supply makes the hardware hold its clocks down",
}


def read(nvml: Session, gpu: Handle) -> int | None:
    """The reasons, a bit each; None where they are not told."""
    reasons: int | None = nvml.told(pynvml.nvmlDeviceGetCurrentClocksEventReasons, gpu)
    return reasons


def judge(reasons: int | None) -> Sign | None:
    """Of all reasons these two."""
    faults = [words for bit, words in _FAULTS.items() if (reasons or 0) & bit]
    return Sign(AilmentKind.HEAT, "; ".join(faults)) if faults else None
