"""Health as the driver reports it now.

A value that the device or driver does not support counts as healthy. Those are few, read with ``ask_optional`` or
``field``. Any other missing answer is an error, never health.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pynvml

from scrubber.core.model import AilmentKind, Sign, Vitals
from scrubber.devices.base import DeviceLostError
from scrubber.devices.nvidia import holders
from scrubber.devices.nvidia.holders import IsRunning, Usage
from scrubber.devices.nvidia.inventory import boards
from scrubber.devices.nvidia.nvml import SLICE, Handle, RecoveryAction, ResetRequiredError, Session

Signs = Callable[[Session, Handle], tuple[Sign, ...]]

_REBOOT: dict[int, str] = {
    RecoveryAction.NODE_REBOOT: "the driver asks for a reboot of the node",
    RecoveryAction.SYSTEM_REBOOT: "the driver asks for a reboot of the whole system",
}


def no_signs(_nvml: Session, _gpu: Handle) -> tuple[Sign, ...]:
    """The default: no signs are read."""
    return ()


def of(
    nvml: Session,
    uuid: str,
    is_running: IsRunning,
    leaked: Callable[[Usage], int] = holders.leaked,
    signs: Signs = no_signs,
) -> Vitals:
    """Health of a GPU or a slice. ``leaked`` returns the bytes that no running process explains.

    ``signs`` reads the signs of the whole GPU, in addition to a reboot that the driver asks for.
    A GPU that is now sliced is reported as lost and relaid: it cannot be offered as a whole any more.
    """
    try:
        handle = nvml.handle(uuid)
        gpu = _gpu(nvml, uuid, handle)
        if gpu is handle and boards.sliced(nvml, gpu):
            return Vitals(lost=True, relaid=True)
        pending, failed = _remaps(nvml, gpu)
        action = nvml.field(gpu, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
        return Vitals(
            ecc_uncorrectable=_uncorrectable(nvml, gpu),
            remap_pending=pending,
            remap_failed=failed,
            reset_required=action not in {None, RecoveryAction.NONE, *_REBOOT},
            leaked_bytes=leaked(holders.read_usage(nvml, handle, is_running)),
            signs=(*_reboots(action), *signs(nvml, gpu)),
        )
    except DeviceLostError:
        return Vitals(lost=True)
    except ResetRequiredError:
        return Vitals(reset_required=True)


def worsened(before: Vitals, after: Vitals) -> str | None:
    """The fault that ``after`` reports and ``before`` does not; None without one."""
    if after.lost and not before.lost:
        return "it fell off its bus"
    if after.ecc_uncorrectable > before.ecc_uncorrectable:
        return f"{after.ecc_uncorrectable - before.ecc_uncorrectable} new uncorrectable memory error(s) were counted"
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
        found = (f"{errors} memory error(s) corrected", errors), (f"{rows} memory row(s) remapped", rows)
        return tuple(text for text, count in found if count > 0)


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


def _uncorrectable(nvml: Session, gpu: Handle) -> int:
    """Uncorrectable errors since the last reset; 0 for a GPU without ECC, or with ECC off."""
    kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return nvml.ask_optional(pynvml.nvmlDeviceGetTotalEccErrors, gpu, kind, since) or 0


def _remaps(nvml: Session, gpu: Handle) -> tuple[bool, bool]:
    """Remaps pending and failed. GPUs before Ampere retire pages instead; with MIG on, neither is reported."""
    rows = nvml.ask_optional(pynvml.nvmlDeviceGetRemappedRows, gpu)
    if rows is None:
        return bool(nvml.ask_optional(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, gpu)), False
    _, _, pending, failed = rows
    return bool(pending), bool(failed)


def _reboots(action: int | None) -> tuple[Sign, ...]:
    """The reboot that the driver asks for, if any. Any other action counts as a request for a reset."""
    return (Sign(AilmentKind.REBOOT_REQUIRED, _REBOOT[action]),) if action in _REBOOT else ()
