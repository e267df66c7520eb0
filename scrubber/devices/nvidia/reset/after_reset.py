"""Waiting for a GPU after its reset: the same one, at the same place, that answers and wants nothing more."""

from __future__ import annotations

from ctypes import byref
from time import monotonic, sleep

import pynvml

from scrubber.devices.base import DeviceError, DeviceLostError
from scrubber.devices.nvidia.inventory import boards, pci
from scrubber.devices.nvidia.nvml import Handle, ResetRequiredError, Session
from scrubber.devices.nvidia.reset.preconditions import ResetTarget

_FIRST_PAUSE, _GROWTH, _LONGEST_PAUSE = 0.05, 2.0, 1.0
_WANTS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "another reset",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "a reboot of the node",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "its peers drained",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "to be drained and reset",
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "its IMEX domain recovered",
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "a reset of its bus",
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "a reboot of the whole system",
}


class _OtherError(DeviceError):
    """Another device is where ours was, or ours is where another was: waiting does not help."""


def joined_before_reset(session: Session, uuid: str) -> bool:
    """Whether it is part of a fabric of NVSwitches, without which CUDA does not start; not known is no."""
    try:
        return bool(_fabric(session, session.handle(uuid)) == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED)
    except ResetRequiredError:
        return False


def wait(target: ResetTarget, *, joined: bool) -> None:
    """Until it is back. NVML is opened anew for every look: it may not find what was away when it was opened."""
    until = monotonic() + target.patience.coming_back
    pause = _FIRST_PAUSE
    while (fault := _missed(target, joined=joined)) is not None:
        if monotonic() + pause > until:
            kind = DeviceLostError if isinstance(fault, DeviceLostError) else DeviceError
            raise kind(f"cannot reset: it is not back after {target.patience.coming_back:g} s: {fault}") from fault
        sleep(pause)
        pause = min(pause * _GROWTH, _LONGEST_PAUSE)
        target.library.release_driver()
        target.library.reacquire_driver()


def _missed(target: ResetTarget, *, joined: bool) -> DeviceError | None:
    """What is still missing of it."""
    try:
        with target.library.session() as session:
            device = _look(session, target)
            if joined and _fabric(session, device) != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
                return DeviceError("it has not joined its fabric again")
    except _OtherError:
        raise
    except DeviceError as error:
        return error
    return None


def _look(session: Session, target: ResetTarget) -> Handle:
    try:
        device = session.handle(target.uuid)
    except DeviceError:
        _look_at_its_place(session, target)
        raise
    place = pci.address(session.ask(pynvml.nvmlDeviceGetPciInfo_v3, device))
    if place != target.pci_address:
        raise _OtherError(f"cannot reset: it came back at {place} and was at {target.pci_address}: reboot the node")
    boards.memory(session, device)
    if wants := session.field(device, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION):
        raise DeviceError(f"it wants {_WANTS.get(wants, f'recovery action {wants}')}")
    return device


def _fabric(session: Session, device: Handle) -> int | None:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    told = session.told(pynvml.nvmlDeviceGetGpuFabricInfoV, device, byref(info))
    return None if told is None else int(info.state)


def _look_at_its_place(session: Session, target: ResetTarget) -> None:
    """Whether another device answers where it was."""
    try:
        device = session.ask(pynvml.nvmlDeviceGetHandleByPciBusId, target.pci_address)
        uuid = session.ask(pynvml.nvmlDeviceGetUUID, device)
    except DeviceError:
        return  # nobody does, yet
    if uuid != target.uuid:
        raise _OtherError(f"cannot reset: {uuid} answers at {target.pci_address} now, where {target.uuid} was")
