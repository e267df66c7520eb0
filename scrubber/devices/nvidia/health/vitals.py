"""Health of a GPU by NVML: ECC and remapped rows, heat, PCIe, NVLink and fabric, and repairs since before.

A value that the device or driver does not support counts as healthy, unless it was supported since the last reset.
Only the values that are read with ``ask_optional`` or ``field`` may be missing. Any other missing answer is an error,
never health. Signs that must last are judged in ``watch``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from ctypes import byref
from dataclasses import dataclass

import pynvml

from ground.quantities import quantity
from scrubber.core.ailment_traits import AILMENTS
from scrubber.core.model import AilmentKind, Sign, Vitals
from scrubber.devices.base import DeviceLostError
from scrubber.devices.nvidia import boards, holders, nvlinks
from scrubber.devices.nvidia.holders import IsRunning, Usage
from scrubber.devices.nvidia.nvml import SLICE, Handle, NoPermissionError, RecoveryAction, ResetRequiredError, Session

Signs = Callable[[Handle], tuple[Sign, ...]]  # of a whole GPU

REPLAY_WINDOW = 60.0  # seconds over which replays of a PCIe link are counted
# More replays than this are a fault. A good link has almost none; a failing link was not measured yet.
REPLAYS = 8

# What the driver asks for and no reset gives. Any other action counts as a request for a reset.
_ASKED: dict[int | None, Sign] = {
    RecoveryAction.NODE_REBOOT: Sign(AilmentKind.REBOOT_REQUIRED, "the driver asks for a reboot of the node"),
    RecoveryAction.SYSTEM_REBOOT: Sign(AilmentKind.REBOOT_REQUIRED, "the driver asks for a reboot of the whole system"),
    RecoveryAction.RECOVER_IMEX_DOMAIN: Sign(AilmentKind.FABRIC, "the driver asks to recover its IMEX domain"),
}

ALL = 100  # percent of the time

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


def read(nvml: Session, uuid: str, is_running: IsRunning, signs: Signs) -> tuple[Vitals, Usage | None]:
    """The health of a GPU or a slice, and its memory usage, from which the caller computes leaked memory.

    ``signs`` reads the signs of the whole GPU, in addition to what the driver asks for.
    A GPU that is now sliced is reported as lost and relaid: it cannot be offered as a whole any more.
    """
    try:
        handle = nvml.handle(uuid)
        gpu = _gpu(nvml, uuid, handle)
        if gpu is handle and boards.sliced(nvml, gpu):
            return Vitals(lost=True, relaid=True), None
        asking = nvml.about(uuid)
        # Remapped rows. GPUs before Ampere retire pages instead; with MIG on, neither is reported.
        rows = asking.ask_optional(pynvml.nvmlDeviceGetRemappedRows, gpu)
        if rows is None:
            pending, failed = asking.ask_optional(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, gpu), False
        else:
            _, _, pending, failed = rows
        action = asking.field(gpu, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
        usage = holders.read_usage(nvml, handle, is_running)
        kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        asked = (_ASKED[action],) if action in _ASKED else ()
        health = Vitals(
            # 0 for a GPU without ECC, or with ECC off
            ecc_uncorrectable=asking.ask_optional(pynvml.nvmlDeviceGetTotalEccErrors, gpu, kind, since) or 0,
            remap_pending=bool(pending),
            remap_failed=bool(failed),
            reset_required=action not in {None, RecoveryAction.NONE, *_ASKED},
            signs=tuple(sign for sign in (*asked, *signs(gpu)) if gpu is handle or AILMENTS[sign.kind].of_slices),
        )
    except DeviceLostError:
        return Vitals(lost=True), None
    except ResetRequiredError:
        return Vitals(reset_required=True), None
    return health, usage


def worsened(before: Vitals, after: Vitals) -> str | None:
    """The fault that ``after`` reports and ``before`` does not; None without one."""
    if after.lost and not before.lost:
        return "it fell off its bus"
    if after.ecc_uncorrectable > before.ecc_uncorrectable:
        new = after.ecc_uncorrectable - before.ecc_uncorrectable
        return f"it counted {quantity(new, 'new uncorrectable memory error')}"
    if after.remap_failed and not before.remap_failed:
        return "a memory row could not be remapped"
    if after.remap_pending and not before.remap_pending:
        return "a memory row now waits for its remapping"
    if after.reset_required and not before.reset_required:
        return "the driver asked for a reset"
    if _needs_reboot(after) and not _needs_reboot(before):
        return "the driver asked for a reboot"
    return None


@dataclass(frozen=True, slots=True)
class Repairs:
    """What the hardware has repaired by itself. ECC hides these errors from every test of memory."""

    corrected: int  # memory errors since the last reset
    remapped: int  # memory rows, ever

    def since(self, before: Repairs) -> tuple[str, ...]:
        """What was repaired since ``before``."""
        errors, rows = self.corrected - before.corrected, self.remapped - before.remapped
        counts = (
            (f"{quantity(errors, 'memory error')} corrected", errors),
            (f"{quantity(rows, 'memory row')} remapped", rows),
        )
        return tuple(text for text, count in counts if count > 0)


def repairs(nvml: Session, uuid: str) -> Repairs:
    """Of the whole GPU, also for a slice; 0 for what the device or driver does not count."""
    gpu = _gpu(nvml, uuid, nvml.handle(uuid))
    kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC
    rows = nvml.ask_optional(pynvml.nvmlDeviceGetRemappedRows, gpu) or (0, 0)
    return Repairs(nvml.ask_optional(pynvml.nvmlDeviceGetTotalEccErrors, gpu, kind, since) or 0, rows[0] + rows[1])


def _needs_reboot(vitals: Vitals) -> bool:
    return any(sign.kind is AilmentKind.REBOOT_REQUIRED for sign in vitals.signs)


def _gpu(nvml: Session, uuid: str, handle: Handle) -> Handle:
    """The whole GPU: the driver reports memory errors, repairs and resets of whole GPUs only."""
    if not uuid.startswith(SLICE):
        return handle
    return nvml.ask(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)


def at_once(nvml: Session, gpu: Handle, links_before: frozenset[int]) -> tuple[Sign, ...]:
    """The signs for a worker, whose reading is the last before a device counts as clean."""
    signs = [_allowed(lambda: sram(nvml, gpu))]
    if links_before:
        signs.append(_allowed(lambda: links_down(links_before, links_up(nvml, gpu))))
    return tuple(sign for sign in signs if sign is not None)


def _allowed(read: Callable[[], Sign | None]) -> Sign | None:
    """Without permission there is no sign. The service reads all signs at the end of a job too."""
    try:
        return read()
    except NoPermissionError:
        return None


def heat(nvml: Session, gpu: Handle) -> Sign | None:
    """Clocks that the hardware reduces, for heat or low power. Reductions by the driver are normal."""
    reasons = nvml.ask_optional(pynvml.nvmlDeviceGetCurrentClocksEventReasons, gpu) or 0
    faults = [words for bit, words in _CLOCK_FAULTS.items() if reasons & bit]
    return Sign(AilmentKind.HEAT, "; ".join(faults)) if faults else None


def ghost_load(nvml: Session, gpu: Handle) -> Sign | None:
    """A GPU that is busy without a process. After a kill in the middle of a kernel, Blackwell GPUs report that."""
    load = nvml.ask_optional(pynvml.nvmlDeviceGetUtilizationRates, gpu)
    if load is None or load.gpu < ALL or holders.pids(nvml, gpu):
        return None
    if boards.memory(nvml, gpu).used > holders.IDLE_AT_MOST:  # of a process that is not listed
        return None
    return Sign(AilmentKind.GHOST_LOAD, "the driver reports that it is 100 % busy, and lists no process on it")


def sram(nvml: Session, gpu: Handle) -> Sign | None:
    """On-chip memory with more uncorrectable errors than the driver tolerates. Not supported: no sign."""
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    supported = nvml.ask_optional(pynvml.nvmlDeviceGetSramEccErrorStatus, gpu, byref(status)) is not None
    detail = "it had more uncorrectable errors in its memory on the chip than the driver tolerates"
    return Sign(AilmentKind.SRAM, detail) if supported and status.bThresholdExceeded else None


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
    links = quantity(len(before), "NVLink that was up", "NVLinks that were up")
    return Sign(AilmentKind.LINKS, f"of {links}, {quantity(len(down), 'is', 'are')} down: {', '.join(map(str, down))}")


def read_pcie(nvml: Session, gpu: Handle) -> tuple[int | None, int | None]:
    """The lanes of the PCIe link, and its replays since the driver was loaded; None if not supported."""
    lanes: int | None = nvml.ask_optional(pynvml.nvmlDeviceGetCurrPcieLinkWidth, gpu)
    return lanes, nvml.ask_optional(pynvml.nvmlDeviceGetPcieReplayCounter, gpu)


def judge_pcie(lanes: int | None, lanes_before: int, replays_lately: int) -> Sign | None:
    """A link with fewer lanes than before, or many replays. ``lanes_before``: the most since the node booted."""
    faults = []
    if lanes is not None and lanes < lanes_before:
        faults.append(f"its PCIe link has {quantity(lanes, 'lane')} and had {lanes_before}")
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

    A GPU that was never in a fabric is well: a virtual machine may have none. If there should be one, CUDA does not
    start, so the GPU is never proven clean.
    """
    if not reading.joined:
        return Sign(AilmentKind.FABRIC, "it has left its fabric") if joined_before else None
    if reading.status != pynvml.NVML_SUCCESS:
        return Sign(AilmentKind.FABRIC, f"it could not join its fabric: error {reading.status} of NVML")
    faults = [words for shift, words in _FABRIC_FAULTS.items() if (reading.health >> shift) & 3 == _YES]
    mask = int(pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION)
    wrong = reading.health >> int(pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION) & mask
    if wrong > pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE:
        faults.append(f"its configuration is wrong (kind {wrong})")
    return Sign(AilmentKind.FABRIC, f"in its fabric {'; '.join(faults)}") if faults else None
