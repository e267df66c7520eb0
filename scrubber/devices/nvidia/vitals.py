"""Health as the driver reports it now.

What a device or its driver does not know at all counts as nothing wrong, and there are few such things: they stand
here with ``told`` or ``field``. Everything else that is not answered is an error, never health.
"""

from __future__ import annotations

from collections.abc import Callable

import pynvml

from scrubber.core.model import Vitals
from scrubber.devices.base import DeviceLostError
from scrubber.devices.nvidia import boards, users
from scrubber.devices.nvidia.library import SLICE, Handle, ResetRequiredError, Session
from scrubber.devices.nvidia.users import Lives, Usage


def of(nvml: Session, uuid: str, lives: Lives, leaked: Callable[[Usage], int] = users.leaked) -> Vitals:
    """Health of a GPU or a slice; ``leaked`` says how much of its memory nobody answers for who ``lives``.

    A GPU that has been sliced is lost as a whole: there is nothing to be handed out under its name.
    """
    try:
        handle = nvml.handle(uuid)
        gpu = _gpu(nvml, uuid, handle)
        if gpu is handle and boards.sliced(nvml, gpu):
            return Vitals(lost=True)
        pending, failed = _remaps(nvml, gpu)
        return Vitals(
            ecc_uncorrectable=_uncorrectable(nvml, gpu),
            remap_pending=pending,
            remap_failed=failed,
            reset_required=_wants_reset(nvml, gpu),
            leaked_bytes=leaked(users.look(nvml, handle, lives)),
        )
    except DeviceLostError:
        return Vitals(lost=True)
    except ResetRequiredError:
        return Vitals(reset_required=True)


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


def _wants_reset(nvml: Session, gpu: Handle) -> bool:
    """Any wish of the driver's, also one that a reset may not fulfil: it is told again afterwards."""
    wish = nvml.field(gpu, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
    return wish not in (None, pynvml.NVML_GPU_RECOVERY_ACTION_NONE)
