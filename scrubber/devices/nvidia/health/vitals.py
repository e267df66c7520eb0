"""Health as the driver reports it now.

What a device or its driver does not know at all counts as nothing wrong, and there are few such things: they stand
here with ``told`` or ``field``. Everything else that is not answered is an error, never health.
"""

from __future__ import annotations

from collections.abc import Callable

import pynvml

from scrubber.core.model import AilmentKind, Sign, Vitals
from scrubber.devices.base import DeviceLostError
from scrubber.devices.nvidia import holders
from scrubber.devices.nvidia.holders import Lives, Usage
from scrubber.devices.nvidia.inventory import boards
from scrubber.devices.nvidia.nvml import SLICE, Handle, ResetRequiredError, Session

Signs = Callable[[Session, Handle], tuple[Sign, ...]]

_REBOOT = {
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "the driver asks for a reboot of the node",
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "the driver asks for a reboot of the whole system",
}


def no_signs(_nvml: Session, _gpu: Handle) -> tuple[Sign, ...]:
    """Nobody looks for any."""
    return ()


def of(
    nvml: Session, uuid: str, lives: Lives, leaked: Callable[[Usage], int] = holders.leaked, signs: Signs = no_signs
) -> Vitals:
    """Health of a GPU or a slice; ``leaked`` says how much of its memory nobody answers for who ``lives``.

    ``signs`` are those of the whole GPU, beside the driver's wish for a reboot.
    A GPU that has been sliced is lost as a whole, as somebody wanted it: there is nothing to be handed out under its
    name.
    """
    try:
        handle = nvml.handle(uuid)
        gpu = _gpu(nvml, uuid, handle)
        if gpu is handle and boards.sliced(nvml, gpu):
            return Vitals(lost=True, relaid=True)
        pending, failed = _remaps(nvml, gpu)
        wish = nvml.field(gpu, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
        return Vitals(
            ecc_uncorrectable=_uncorrectable(nvml, gpu),
            remap_pending=pending,
            remap_failed=failed,
            reset_required=wish not in {None, pynvml.NVML_GPU_RECOVERY_ACTION_NONE, *_REBOOT},
            leaked_bytes=leaked(holders.look(nvml, handle, lives)),
            signs=(*_reboots(wish), *signs(nvml, gpu)),
        )
    except DeviceLostError:
        return Vitals(lost=True)
    except ResetRequiredError:
        return Vitals(reset_required=True)


def worsened(before: Vitals, after: Vitals) -> str | None:
    """What was told meanwhile that had not been told before."""
    if after.lost and not before.lost:
        return "it fell off its bus"
    if after.ecc_uncorrectable > before.ecc_uncorrectable:
        return f"{after.ecc_uncorrectable - before.ecc_uncorrectable} new uncorrectable memory error(s) were counted"
    if after.remap_failed and not before.remap_failed:
        return "a memory row could not be remapped"
    if after.remap_pending and not before.remap_pending:
        return "a memory row came to wait for its remapping"
    if after.reset_required and not before.reset_required:
        return "the driver asked for a reset"
    if _reboot_wanted(after) and not _reboot_wanted(before):
        return "the driver asked for a reboot"
    return None


def _reboot_wanted(vitals: Vitals) -> bool:
    return any(sign.kind is AilmentKind.REBOOT_REQUIRED for sign in vitals.signs)


def _gpu(nvml: Session, uuid: str, handle: Handle) -> Handle:
    """Memory errors, repairs and resets are told of the whole GPU only."""
    if not uuid.startswith(SLICE):
        return handle
    return nvml.ask(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)


def _uncorrectable(nvml: Session, gpu: Handle) -> int:
    """Since the last reset; a GPU without ECC, or with it switched off, counts none."""
    kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return nvml.told(pynvml.nvmlDeviceGetTotalEccErrors, gpu, kind, since) or 0


def _remaps(nvml: Session, gpu: Handle) -> tuple[bool, bool]:
    """Pending and failed. GPUs before Ampere retire pages instead; with MIG on, neither is told."""
    rows = nvml.told(pynvml.nvmlDeviceGetRemappedRows, gpu)
    if rows is None:
        return bool(nvml.told(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, gpu)), False
    _, _, pending, failed = rows
    return bool(pending), bool(failed)


def _reboots(wish: int | None) -> tuple[Sign, ...]:
    """Any other wish is one for a reset, also one that a reset may not fulfil: it is told again afterwards."""
    return (Sign(AilmentKind.REBOOT_REQUIRED, _REBOOT[wish]),) if wish in _REBOOT else ()
