"""The sign of clocks that the hardware reduces, for heat or low power. Reductions by the driver are normal."""

from __future__ import annotations

import pynvml

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.nvidia.nvml import Handle, Session

_FAULTS = {
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "it is too hot: the hardware reduces its clocks",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "its power supply makes the hardware reduce its clocks",
}


def read(nvml: Session, gpu: Handle) -> int | None:
    """The reasons as bits; None if not supported."""
    reasons: int | None = nvml.ask_optional(pynvml.nvmlDeviceGetCurrentClocksEventReasons, gpu)
    return reasons


def judge(reasons: int | None) -> Sign | None:
    """The sign, if one of the two reasons is set."""
    faults = [words for bit, words in _FAULTS.items() if (reasons or 0) & bit]
    return Sign(AilmentKind.HEAT, "; ".join(faults)) if faults else None
