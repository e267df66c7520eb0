"""The reset of a whole GPU without holders, by the driver's own tool, which checks for clients of the device.

Every part has a time limit (``preconditions.Patience``), so that a failing reset can say what failed. The deadline of
the step kills this process anyway if a call hangs in the driver.

A reset first switches persistence mode off, because a persistent GPU must not be reset and the daemon has it open. Then
it closes NVML, and checks the holders once more; the service has closed its own NVML. Afterwards it waits until the
same GPU answers at the same PCI address and needs no further recovery, and restores persistence mode and slices. If
this process is killed before that, the next worker of the GPU restores them (``pending_restore``). The locks are held
all the time, and for as long as the tool runs (``locks``).

If the service kills the worker that started the tool, the tool runs on, because a reset cannot be cancelled. The tool
does not always have the device open, so the lock that it inherits keeps other workers away.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from time import monotonic, sleep
from typing import NoReturn

import pynvml

from ground import process_status
from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError
from scrubber.devices.nvidia import boards, locks, pending_restore, preconditions, slices
from scrubber.devices.nvidia.health import vitals
from scrubber.devices.nvidia.nvml import Handle, RecoveryAction, Session, pci_address, unless_silent
from scrubber.devices.nvidia.pending_restore import PendingRestore
from scrubber.devices.nvidia.preconditions import ResetTarget

Held = tuple[int, ...]  # the open files of the locks
Action = Callable[[Session], object]

_POLL_SECONDS = 0.05
_FIRST_PAUSE, _GROWTH, _LONGEST_PAUSE = 0.05, 2.0, 1.0
# A reset has done its part: an IMEX domain is recovered on all its nodes.
_DONE = frozenset({None, RecoveryAction.NONE, RecoveryAction.RECOVER_IMEX_DOMAIN})
_ACTIONS: dict[int | None, str] = {
    RecoveryAction.GPU_RESET: "another reset",
    RecoveryAction.NODE_REBOOT: "a reboot of the node",
    RecoveryAction.DRAIN_P2P: "its peers to be drained",
    RecoveryAction.DRAIN_AND_RESET: "to be drained and reset",
    RecoveryAction.BUS_RESET: "a reset of its bus",
    RecoveryAction.SYSTEM_REBOOT: "a reboot of the whole system",
}

PROGRAM = "nvidia-smi"
_FAILED = f"cannot reset: {PROGRAM}"
_ENDS_WITHIN = 2.0  # seconds at most; a killed process that lives longer is stuck in the driver
_ENDING = 0.1  # of the time limit
_LONGEST = 300  # characters of its output in a message
_IN_USE = ("in use by", "being used by", "is the primary gpu")
_UNSUPPORTED = ("not supported", "unsupported")
_NO_PERMISSION = ("insufficient permission", "does not have permission", "permission denied")
_STATUS_UNSUPPORTED, _STATUS_NO_PERMISSION = 3, 4
_STATUSES = {  # the other documented statuses
    2: "a wrong argument",
    6: "no such device",
    8: "power cables that are not attached",
    9: "a driver that is not loaded",
    10: "a problem with interrupts",
    12: "no NVML library",
    13: "an NVML library that is too old",
    14: "a damaged InfoROM",
    15: "a device that has fallen off the bus",
}


class ResetStuckError(DeviceError):
    """A reset that still runs and cannot be killed: NVML must not be called for this device."""


class _ReplacedError(DeviceError):
    """Another device has the PCI address, or the GPU has another address: waiting does not help."""


def _no_action(_session: Session) -> None:
    """No action before or after the reset."""


def reset(target: ResetTarget, before: Action = _no_action, after: Action = _no_action) -> None:
    """Reset the GPU; return once the same GPU is back with the same slices.

    ``before`` runs when all preconditions hold, ``after`` when the GPU is back; the GPU has no holder either time.
    """
    with locks.claimed(*target.place.reset_locks) as held:
        with target.library.session() as session:
            if faults := preconditions.failed(session, target):
                raise NotNowError(f"cannot reset: {'; '.join(faults)}")
            gpu = target.place.gpu
            # Whether the GPU has joined an NVSwitch fabric, which CUDA then needs to start. False if unknown.
            joined = unless_silent(lambda: vitals.read_fabric(session, session.handle(gpu)).joined, otherwise=False)
            before(session)
            mode = preconditions.ask_before_reset(session, target, pynvml.nvmlDeviceGetPersistenceMode)
            # What to restore: the state now, which an operator may have chosen, and what earlier resets left.
            persistence = mode == pynvml.NVML_FEATURE_ENABLED
            now = PendingRestore(persistence, unless_silent(lambda: slices.layout(session, gpu), ()))
            pending = pending_restore.merged((now, *target.place.notes.read().values()))
            if pending:
                target.place.notes.write(target.place.notes.file(), pending)
        try:
            _reset_closed(target, held, mode)
            wait_until_back(target, joined=joined)
        except (DeviceLostError, ResetStuckError):
            raise  # NVML cannot be asked now: the pending restore stays stored
        except DeviceError as error:
            try:
                _restore(target, pending)
            except DeviceError as second:
                raise DeviceError(f"{error}; {second}") from error
            raise
        _restore(target, pending)
        with target.library.session() as session:
            after(session)


def _reset_closed(target: ResetTarget, held: Held, mode: int | None) -> None:
    """Switch persistence off, close NVML, and reset."""
    if mode == pynvml.NVML_FEATURE_ENABLED:
        with target.library.session() as session:
            pending_restore.persist(session, target.place.gpu, pynvml.NVML_FEATURE_DISABLED)
    target.library.release_driver()
    try:
        until = monotonic() + target.patience.leaving  # the persistence daemon gets a moment to close the GPU
        while (fault := preconditions.open_holders(target.holders())) is not None:
            if monotonic() >= until:
                raise NotNowError(f"cannot reset: {fault}")
            sleep(_POLL_SECONDS)
        run_tool(target.place.gpu, target.patience.tool, *held)
    finally:
        target.library.reacquire_driver()


def _restore(target: ResetTarget, pending: PendingRestore) -> None:
    if not pending:
        return
    try:
        with target.library.session() as session:
            pending_restore.apply(session, target.place.gpu, pending)
    except DeviceLostError:
        raise
    except DeviceError as error:
        raise DeviceError(f"cannot reset: {error}") from error
    target.place.notes.drop(target.place.notes.read())


def wait_until_back(target: ResetTarget, *, joined: bool) -> None:
    """Wait until the GPU is back. NVML is opened again for every check: an open NVML may not see it."""
    until = monotonic() + target.patience.coming_back
    pause = _FIRST_PAUSE
    while (fault := _fault(target, joined=joined)) is not None:
        if monotonic() + pause > until:
            kind = DeviceLostError if isinstance(fault, DeviceLostError) else DeviceError
            raise kind(f"cannot reset: it is not back after {target.patience.coming_back:g} s: {fault}") from fault
        sleep(pause)
        pause = min(pause * _GROWTH, _LONGEST_PAUSE)
        target.library.release_driver()
        target.library.reacquire_driver()


def _fault(target: ResetTarget, *, joined: bool) -> DeviceError | None:
    try:
        with target.library.session() as session:
            device = _checked(session, target)
            if joined and not vitals.read_fabric(session, device).joined:
                return DeviceError("it has not joined its fabric again")
    except _ReplacedError:
        raise
    except DeviceError as error:
        return error
    return None


def _checked(session: Session, target: ResetTarget) -> Handle:
    try:
        device = session.handle(target.place.gpu)
    except DeviceError:
        _demand_not_replaced(session, target)
        raise
    place = pci_address(session.ask(pynvml.nvmlDeviceGetPciInfo_v3, device))
    if place != target.place.pci_address:
        raise _ReplacedError(
            f"cannot reset: it came back at {place} and was at {target.place.pci_address}: reboot the node"
        )
    boards.memory(session, device)
    action = session.field(device, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
    if action not in _DONE:
        raise DeviceError(f"it needs {_ACTIONS.get(action, f'recovery action {action}')}")
    return device


def _demand_not_replaced(session: Session, target: ResetTarget) -> None:
    """Raise if another device answers at the PCI address of the GPU."""
    try:
        device = session.ask(pynvml.nvmlDeviceGetHandleByPciBusId, target.place.pci_address)
        uuid = session.ask(pynvml.nvmlDeviceGetUUID, device)
    except DeviceError:
        return  # no device does, yet
    if uuid != target.place.gpu:
        raise _ReplacedError(
            f"cannot reset: {uuid} answers at {target.place.pci_address} now, where {target.place.gpu} was"
        )


def run_tool(uuid: str, within: float, *held: int) -> None:
    """Have the tool reset one device only; returns when it reports a reset. ``held``: open files that it inherits.

    NotNowError if the tool did nothing, not a fault of the device. After any other DeviceError, what the attempt
    did to the device is not known.
    """
    try:
        process = subprocess.Popen(
            (PROGRAM, "--gpu-reset", "-i", uuid),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its children join its group and can be killed with it
            env=os.environ | {"LC_ALL": "C"},
            pass_fds=held,
        )
    except OSError as error:
        raise NotNowError(f"{_FAILED}: it cannot be started ({error.strerror})") from error
    try:
        output, _ = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        _kill(process, within)
    check(process.returncode, output.decode(errors="replace"))


def check(status: int, output: str) -> None:
    """Raise what exit status and output mean. The output alone can say in use; a reset needs both."""
    words = output.lower()
    if any(fragment in words for fragment in _IN_USE):
        why = "the driver knows a client that no observation shows: find it, or reboot the node"
        raise NotNowError(f"{_FAILED}: {why}")
    if status == 0 and "successfully reset" in words:
        return
    if status == _STATUS_NO_PERMISSION or any(fragment in words for fragment in _NO_PERMISSION):
        raise NotNowError(f"{_FAILED}: it takes root and CAP_SYS_ADMIN")
    if status == _STATUS_UNSUPPORTED or any(fragment in words for fragment in _UNSUPPORTED):
        raise NotNowError(f"{_FAILED}: it says that this device cannot be reset")
    meaning = f" ({_STATUSES[status]})" if status in _STATUSES else ""
    printable = "".join(letter if letter.isprintable() else " " for letter in output)
    output = " ".join(printable.split())[:_LONGEST] or "it said nothing"
    raise DeviceError(f"{_FAILED}: it ended {process_status.ending(status)}{meaning}: {output}")


def _kill(process: subprocess.Popen[bytes], within: float) -> NoReturn:
    os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so no other process has this group
    try:
        process.communicate(timeout=min(_ENDS_WITHIN, _ENDING * within))
    except subprocess.TimeoutExpired:
        if process.stdout is not None:
            process.stdout.close()
        raise ResetStuckError(
            f"{_FAILED}: it (pid {process.pid}) was not done within {within:g} s and cannot be killed: reboot the node"
        ) from None
    raise DeviceError(f"{_FAILED}: it was not done within {within:g} s and was killed")
