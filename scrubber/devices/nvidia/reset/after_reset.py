"""Waits after a reset until the same GPU answers at the same PCI address and needs no further recovery."""

from __future__ import annotations

from ctypes import byref
from time import monotonic, sleep

import pynvml

from scrubber.devices.base import DeviceError, DeviceLostError
from scrubber.devices.nvidia.inventory import boards
from scrubber.devices.nvidia.nvml import Handle, RecoveryAction, ResetRequiredError, Session, pci_address
from scrubber.devices.nvidia.reset.preconditions import ResetTarget

_FIRST_PAUSE, _GROWTH, _LONGEST_PAUSE = 0.05, 2.0, 1.0
_ACTIONS: dict[int, str] = {
    RecoveryAction.GPU_RESET: "another reset",
    RecoveryAction.NODE_REBOOT: "a reboot of the node",
    RecoveryAction.DRAIN_P2P: "its peers to be drained",
    RecoveryAction.DRAIN_AND_RESET: "to be drained and reset",
    RecoveryAction.RECOVER_IMEX_DOMAIN: "its IMEX domain to be recovered, or its bus to be reset",
    RecoveryAction.BUS_RESET: "a reset of its bus",
    RecoveryAction.SYSTEM_REBOOT: "a reboot of the whole system",
}


class _ReplacedError(DeviceError):
    """Another device has the PCI address, or the GPU has another address: waiting does not help."""


def joined_before_reset(session: Session, uuid: str) -> bool:
    """Whether the GPU has joined an NVSwitch fabric, which CUDA then needs to start. False if unknown."""
    try:
        return bool(_fabric(session, session.handle(uuid)) == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED)
    except ResetRequiredError:
        return False


def wait(target: ResetTarget, *, joined: bool) -> None:
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
            if joined and _fabric(session, device) != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
                return DeviceError("it has not joined its fabric again")
    except _ReplacedError:
        raise
    except DeviceError as error:
        return error
    return None


def _checked(session: Session, target: ResetTarget) -> Handle:
    try:
        device = session.handle(target.uuid)
    except DeviceError:
        _demand_not_replaced(session, target)
        raise
    place = pci_address(session.ask(pynvml.nvmlDeviceGetPciInfo_v3, device))
    if place != target.pci_address:
        raise _ReplacedError(f"cannot reset: it came back at {place} and was at {target.pci_address}: reboot the node")
    boards.memory(session, device)
    if action := session.field(device, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION):
        raise DeviceError(f"it needs {_ACTIONS.get(action, f'recovery action {action}')}")
    return device


def _fabric(session: Session, device: Handle) -> int | None:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    answer = session.ask_optional(pynvml.nvmlDeviceGetGpuFabricInfoV, device, byref(info))
    return None if answer is None else int(info.state)


def _demand_not_replaced(session: Session, target: ResetTarget) -> None:
    """Raise if another device answers at the PCI address of the GPU."""
    try:
        device = session.ask(pynvml.nvmlDeviceGetHandleByPciBusId, target.pci_address)
        uuid = session.ask(pynvml.nvmlDeviceGetUUID, device)
    except DeviceError:
        return  # no device does, yet
    if uuid != target.uuid:
        raise _ReplacedError(f"cannot reset: {uuid} answers at {target.pci_address} now, where {target.uuid} was")
