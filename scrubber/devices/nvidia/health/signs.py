"""Reads and judges each kind of sign that the driver shows while it lasts.

Workers import this module, so its imports must be fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from ctypes import byref
from dataclasses import dataclass

import pynvml

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.nvidia.inventory import nvlinks
from scrubber.devices.nvidia.nvml import Handle, NoPermissionError, Session

REPLAY_WINDOW = 60.0  # seconds over which replays of a PCIe link are counted
# More replays than this are a fault. A good link has almost none; a failing link was not measured yet.
REPLAYS = 8

_YES = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE  # in all of these; 0 is not reported, 2 is no
_FABRIC_FAULTS = {
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW: "its bandwidth is degraded",
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY: "its routes are being recovered",
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY: "its routes are unhealthy",
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY: "it recovers from an access that timed out",
}
_CLOCK_FAULTS = {
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "it is too hot: the hardware reduces its clocks",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "its power supply makes the hardware reduce its clocks",
}


def at_once(nvml: Session, gpu: Handle, links_before: frozenset[int]) -> tuple[Sign, ...]:
    """The signs for a worker, whose reading is the last before a device counts as clean."""
    found = [_allowed(lambda: sram(nvml, gpu))]
    if links_before:
        found.append(_allowed(lambda: links_down(links_before, links_up(nvml, gpu))))
    return tuple(sign for sign in found if sign is not None)


def _allowed(read: Callable[[], Sign | None]) -> Sign | None:
    """Without permission there is no sign. The service reads all signs at the end of a job too."""
    try:
        return read()
    except NoPermissionError:
        return None


def heat(nvml: Session, gpu: Handle) -> Sign | None:
    """Clocks that the hardware reduces, for heat or low power. Reductions by the driver are normal."""
    reasons = _clock_reasons(nvml, gpu) or 0
    faults = [words for bit, words in _CLOCK_FAULTS.items() if reasons & bit]
    return Sign(AilmentKind.HEAT, "; ".join(faults)) if faults else None


def _clock_reasons(nvml: Session, gpu: Handle) -> int | None:
    """Why clocks are reduced, as bits; None if not supported."""
    reasons: int | None = nvml.ask_optional(pynvml.nvmlDeviceGetCurrentClocksEventReasons, gpu)
    return reasons


def sram(nvml: Session, gpu: Handle) -> Sign | None:
    """On-chip memory with more uncorrectable errors than the driver tolerates. Not supported: no sign."""
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    known = nvml.ask_optional(pynvml.nvmlDeviceGetSramEccErrorStatus, gpu, byref(status)) is not None
    detail = "it had more uncorrectable errors in its memory on the chip than the driver tolerates"
    return Sign(AilmentKind.SRAM, detail) if known and status.bThresholdExceeded else None


def links_up(nvml: Session, gpu: Handle) -> frozenset[int]:
    """The numbers of the NVLinks that are up."""
    return frozenset(link for link, up in nvlinks.states(nvml, gpu) if up)


def links_down(before: frozenset[int], up: frozenset[int]) -> Sign | None:
    """NVLinks that are down. ``before``: all links that were up since the node booted; others may have no cable.

    A link that the driver does not report any more counts as down. Error counters are not read: NVML calls none of
    them fatal, and a failed recovery leaves the link down.
    """
    down = sorted(before - up)
    if not down:
        return None
    detail = f"{len(down)} of {len(before)} NVLinks that were up are down: {', '.join(map(str, down))}"
    return Sign(AilmentKind.LINKS, detail)


@dataclass(frozen=True, slots=True)
class PcieReading:
    """A PCIe link. None: not supported."""

    lanes: int | None = None
    replays: int | None = None  # counted since the driver was loaded
    generation: int | None = None  # under load only: an idle GPU may reduce it to save power
    highest: int | None = None  # that both the GPU and its slot support


def read_pcie(nvml: Session, gpu: Handle) -> PcieReading:
    """Read the link; the generation only under load."""
    lanes = nvml.ask_optional(pynvml.nvmlDeviceGetCurrPcieLinkWidth, gpu)
    replays = nvml.ask_optional(pynvml.nvmlDeviceGetPcieReplayCounter, gpu)
    if not _under_load(nvml, gpu):
        return PcieReading(lanes, replays)
    generation = nvml.ask_optional(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, gpu)
    return PcieReading(lanes, replays, generation, nvml.ask_optional(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, gpu))


def _under_load(nvml: Session, gpu: Handle) -> bool:
    """Whether the GPU is certainly under load. Some GPUs idle at full speed; not supported means no.

    Reads the reasons itself: a failed reading of heat must neither begin nor end this sign.
    """
    reasons = _clock_reasons(nvml, gpu)
    if reasons is None or reasons & pynvml.nvmlClocksEventReasonGpuIdle:
        return False
    return bool(nvml.ask_optional(pynvml.nvmlDeviceGetPerformanceState, gpu) == pynvml.NVML_PSTATE_0)


def judge_pcie(reading: PcieReading, lanes_before: int, replays_lately: int) -> Sign | None:
    """A link with fewer lanes than before, a reduced generation, or many replays.

    ``lanes_before``: the most lanes since the node booted.
    """
    faults = []
    if reading.lanes is not None and reading.lanes < lanes_before:
        faults.append(f"its PCIe link has {reading.lanes} lanes and had {lanes_before}")
    if reading.generation is not None and reading.highest is not None and reading.generation < reading.highest:
        faults.append(f"its PCIe link is of generation {reading.generation}, of {reading.highest}, under load")
    if replays_lately > REPLAYS:
        faults.append(f"{replays_lately} PCIe replays within {REPLAY_WINDOW:g} s")
    return Sign(AilmentKind.PCIE, "; ".join(faults)) if faults else None


def growth(counted: tuple[tuple[float, int], ...]) -> int:
    """The growth of a counter over its readings; a lower value means that the counter restarted."""
    pairs = itertools.pairwise(count for _, count in counted)
    return sum(after if after < before else after - before for before, after in pairs)


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


def read_fabric(nvml: Session, gpu: Handle) -> FabricReading:
    """Read with version 2 of the structure: version 1 has no health, and older drivers do not support version 3."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if nvml.ask_optional(pynvml.nvmlDeviceGetGpuFabricInfoV, gpu, byref(info)) is None:
        return FabricReading()
    return FabricReading(int(info.state), int(info.status), int(info.healthMask))


def judge_fabric(reading: FabricReading, *, joined_before: bool) -> Sign | None:
    """A GPU has left its fabric if it was in one since the node booted, and is not, or does not report it any more.

    A GPU that was never in a fabric is no fault: a virtual machine may have none. If there should be one, CUDA does not
    start, so the GPU is never proven clean.
    """
    if not reading.joined:
        return Sign(AilmentKind.FABRIC, "it has left its fabric") if joined_before else None
    if reading.status != pynvml.NVML_SUCCESS:
        return Sign(AilmentKind.FABRIC, f"it could not join its fabric: error {reading.status} of NVML")
    faults = [words for shift, words in _FABRIC_FAULTS.items() if (reading.health >> shift) & 3 == _YES]
    if (wrong := _configuration(reading.health)) > pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE:
        faults.append(f"its configuration is wrong (kind {wrong})")
    return Sign(AilmentKind.FABRIC, f"in its fabric {'; '.join(faults)}") if faults else None


def _configuration(health: int) -> int:
    mask = int(pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION)
    return health >> int(pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION) & mask
