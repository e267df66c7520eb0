"""The reset of a whole GPU without holders, by the driver's own tool, which checks for clients of the device.

Every part has a time limit (``preconditions.Patience``), so that a failing reset can say what failed. The deadline of
the step kills this process anyway if a call hangs in the driver.

A reset first switches persistence mode off, because a persistent GPU must not be reset and the daemon has it open. Then
it closes NVML, and checks the holders once more; the service has closed its own NVML. Afterwards it restores
persistence mode and slices. If this process is killed before that, the next worker of the GPU restores them
(``pending_restore``). The locks are held all the time, and for as long as the tool runs (``locks``).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pynvml

from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError
from scrubber.devices.nvidia.inventory import slices
from scrubber.devices.nvidia.nvml import Session
from scrubber.devices.nvidia.reset import after_reset, locks, pending_restore, preconditions, smi
from scrubber.devices.nvidia.reset.pending_restore import PendingRestore
from scrubber.devices.nvidia.reset.preconditions import ResetTarget

Held = tuple[int, ...]  # the open files of the locks
Action = Callable[[Session], object]

_POLL_SECONDS = 0.05


def _no_action(_session: Session) -> None:
    """No action before or after the reset."""


def reset(target: ResetTarget, before: Action = _no_action, after: Action = _no_action) -> None:
    """Reset the GPU; return once the same GPU is back with the same slices.

    ``before`` runs when all preconditions hold, ``after`` when the GPU is back; the GPU has no holder either time.
    """
    with locks.claimed(*target.locks) as held:
        with target.library.session() as session:
            if faults := preconditions.failed(session, target):
                raise NotNowError(f"cannot reset: {'; '.join(faults)}")
            joined = after_reset.joined_before_reset(session, target.uuid)
            before(session)
            mode = preconditions.ask_before_reset(session, target, pynvml.nvmlDeviceGetPersistenceMode)
            pending = _write_pending(session, target, persistence=mode == pynvml.NVML_FEATURE_ENABLED)
        try:
            _reset_closed(target, held, mode)
            after_reset.wait(target, joined=joined)
        except (DeviceLostError, smi.ResetStuckError):
            raise  # NVML cannot be asked now: the pending restore stays stored
        except DeviceError as error:
            _restore_after(error, target, pending)
            raise
        _restore(target, pending)
        with target.library.session() as session:
            after(session)


def _write_pending(session: Session, target: ResetTarget, *, persistence: bool) -> PendingRestore:
    """Store and return what to restore: the state now, which an operator may have chosen, plus earlier restores."""
    now = PendingRestore(persistence, slices.layout_before_reset(session, target.uuid))
    if target.notes is None:
        return now
    pending = pending_restore.merged((now, *target.notes.read().values()))
    if pending:
        target.notes.write(target.notes.file(), pending)
    return pending


def _reset_closed(target: ResetTarget, held: Held, mode: int | None) -> None:
    """Switch persistence off, close NVML, and reset."""
    if mode == pynvml.NVML_FEATURE_ENABLED:
        with target.library.session() as session:
            pending_restore.persist(session, target.uuid, pynvml.NVML_FEATURE_DISABLED)
    target.library.release_driver()
    try:
        _demand_no_holders(target)
        smi.reset(target.uuid, target.patience.tool, *held)
    finally:
        target.library.reacquire_driver()


def _demand_no_holders(target: ResetTarget) -> None:
    """NotNowError if the GPU has a holder; the persistence daemon gets a moment to close it."""
    if fault := _wait_for_none(lambda: preconditions.open_holders(target.holders()), target.patience.leaving):
        raise NotNowError(f"cannot reset: {fault}")


def _wait_for_none(check: Callable[[], str | None], within: float) -> str | None:
    """Poll until ``check`` finds no fault; the fault after the time limit."""
    until = time.monotonic() + within
    while (fault := check()) is not None:
        if time.monotonic() >= until:
            break
        time.sleep(_POLL_SECONDS)
    return fault


def _restore(target: ResetTarget, pending: PendingRestore) -> None:
    if not pending:
        return
    try:
        with target.library.session() as session:
            pending_restore.apply(session, target.uuid, pending)
    except DeviceLostError:
        raise
    except DeviceError as error:
        raise DeviceError(f"cannot reset: {error}") from error
    if target.notes is not None:
        target.notes.drop(target.notes.read())


def _restore_after(error: DeviceError, target: ResetTarget, pending: PendingRestore) -> None:
    """Restore after a failed reset; if this fails as well, raise both errors."""
    try:
        _restore(target, pending)
    except DeviceError as second:
        raise DeviceError(f"{error}; {second}") from error
