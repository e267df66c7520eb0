"""The sign of a PCIe link with fewer lanes than before, a reduced generation, or many replays."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pynvml

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.nvidia.health.signs import heat
from scrubber.devices.nvidia.nvml import Handle, Session

WINDOW = 60.0  # seconds over which replays are counted
# More replays than this are a fault. A good link has almost none; a failing link was not measured yet.
REPLAYS = 8


@dataclass(frozen=True, slots=True)
class PcieReading:
    """None: not supported."""

    lanes: int | None = None
    replays: int | None = None  # counted since the driver was loaded
    generation: int | None = None  # under load only: an idle GPU may reduce it to save power
    highest: int | None = None  # that both the GPU and its slot support


def read(nvml: Session, gpu: Handle) -> PcieReading:
    """Read the link; the generation only under load."""
    lanes = nvml.ask_optional(pynvml.nvmlDeviceGetCurrPcieLinkWidth, gpu)
    replays = nvml.ask_optional(pynvml.nvmlDeviceGetPcieReplayCounter, gpu)
    if not _under_load(nvml, gpu):
        return PcieReading(lanes, replays)
    generation = nvml.ask_optional(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, gpu)
    return PcieReading(lanes, replays, generation, nvml.ask_optional(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, gpu))


def judge(reading: PcieReading, lanes_before: int, replays_lately: int) -> Sign | None:
    """``lanes_before``: the most lanes since the node booted."""
    faults = []
    if reading.lanes is not None and reading.lanes < lanes_before:
        faults.append(f"its PCIe link has {reading.lanes} lanes and had {lanes_before}")
    if reading.generation is not None and reading.highest is not None and reading.generation < reading.highest:
        faults.append(f"its PCIe link is of generation {reading.generation}, of {reading.highest}, under load")
    if replays_lately > REPLAYS:
        faults.append(f"{replays_lately} PCIe replays within {WINDOW:g} s")
    return Sign(AilmentKind.PCIE, "; ".join(faults)) if faults else None


def lately(counted: tuple[tuple[float, int], ...]) -> int:
    """The growth of a counter over its readings; a lower value means that the counter restarted."""
    pairs = itertools.pairwise(count for _, count in counted)
    return sum(after if after < before else after - before for before, after in pairs)


def _under_load(nvml: Session, gpu: Handle) -> bool:
    """Whether the GPU is certainly under load. Some GPUs idle at full speed; not supported means no.

    Reads the reasons itself: a failed reading of heat must neither begin nor end this sign.
    """
    reasons = heat.read(nvml, gpu)
    if reasons is None or reasons & pynvml.nvmlClocksEventReasonGpuIdle:
        return False
    return bool(nvml.ask_optional(pynvml.nvmlDeviceGetPerformanceState, gpu) == pynvml.NVML_PSTATE_0)
