"""A PCIe link with fewer lanes than it had, a lower generation than it could have, or many replays."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pynvml

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.nvidia.health.signs import heat
from scrubber.devices.nvidia.nvml import Handle, Session

WINDOW = 60.0  # seconds over which replays are counted
# More than so many of them. A good link replays next to nothing; what a link that goes bad does is not measured.
REPLAYS = 8


@dataclass(frozen=True, slots=True)
class PcieReading:
    """None: not told."""

    lanes: int | None = None
    replays: int | None = None  # counted since the driver was loaded
    generation: int | None = None  # of a GPU that works: one that idles may go down to save power
    highest: int | None = None  # that the GPU and its slot have in common


def read(nvml: Session, gpu: Handle) -> PcieReading:
    """A generation only of one that works."""
    lanes = nvml.told(pynvml.nvmlDeviceGetCurrPcieLinkWidth, gpu)
    replays = nvml.told(pynvml.nvmlDeviceGetPcieReplayCounter, gpu)
    if not _works(nvml, gpu):
        return PcieReading(lanes, replays)
    generation = nvml.told(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, gpu)
    return PcieReading(lanes, replays, generation, nvml.told(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, gpu))


def judge(reading: PcieReading, lanes_before: int, replays_lately: int) -> Sign | None:
    """``lanes_before``: the most that were ever seen since the node was started."""
    faults = []
    if reading.lanes is not None and reading.lanes < lanes_before:
        faults.append(f"its PCIe link has {reading.lanes} lanes and had {lanes_before}")
    if reading.generation is not None and reading.highest is not None and reading.generation < reading.highest:
        faults.append(f"its PCIe link is of generation {reading.generation}, of {reading.highest}, while it works")
    if replays_lately > REPLAYS:
        faults.append(f"{replays_lately} PCIe replays within {WINDOW:g} s")
    return Sign(AilmentKind.PCIE, "; ".join(faults)) if faults else None


def lately(counted: tuple[tuple[float, int], ...]) -> int:
    """By how much a counter, read at these times, has grown; one that went back was begun anew."""
    pairs = itertools.pairwise(count for _, count in counted)
    return sum(after if after < before else after - before for before, after in pairs)


def _works(nvml: Session, gpu: Handle) -> bool:
    """Whether it certainly does: some idle at full speed, and what is not told is no.

    Asked anew, and not taken from the look for heat: what that could not read must neither make nor end this sign.
    """
    reasons = heat.read(nvml, gpu)
    if reasons is None or reasons & pynvml.nvmlClocksEventReasonGpuIdle:
        return False
    return bool(nvml.told(pynvml.nvmlDeviceGetPerformanceState, gpu) == pynvml.NVML_PSTATE_0)
