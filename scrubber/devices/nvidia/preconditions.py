"""What must hold before a reset, which takes down all on a GPU: rights, daemons, fabric manager, open holders."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pynvml

from ground import process_names, unix_sockets
from scrubber.core.model import Holder
from scrubber.devices.base import DeviceError, DeviceLostError, Users
from scrubber.devices.nvidia import holders
from scrubber.devices.nvidia.address import WorkerTarget
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library, Session, unless_silent
from scrubber.words import nvidia_advice

_FABRIC_MANAGER = "nv-fabricmanager"
_NEED_A_FABRIC_MANAGER = (pynvml.NVML_DEVICE_ARCH_AMPERE, pynvml.NVML_DEVICE_ARCH_UNKNOWN, None)
# Identities of PCI devices, as sysfs has them.
_NVIDIA = "0x10de"
_OTHER_BRIDGE = "0x0680"  # the PCI class of NVSwitches
_TESLA_T4 = "0x1eb8"


@dataclass(frozen=True, slots=True)
class Patience:
    """The time limit of each part of a reset, in seconds: shares of the limit of the step."""

    leaving: float  # for the persistence daemon to close the device
    tool: float  # for nvidia-smi; killing it takes up to a tenth more
    coming_back: float

    @classmethod
    def within(cls, seconds: float) -> Self:
        """Shares of the limit; the rest is for the calls to NVML before and after the reset."""
        return cls(leaving=0.04 * seconds, tool=0.5 * seconds, coming_back=0.25 * seconds)


def is_root() -> bool:
    """Whether this process runs as root."""
    return os.geteuid() == 0


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """A whole GPU that is to be reset.

    ``holders`` returns the holders of all that the reset takes down, bystanders and the service included; None if they
    are unknown. ``daemon_runs`` says whether root runs a program of that name on the node; None if unknown.
    """

    place: WorkerTarget
    holders: Users
    library: Library
    privileged: bool
    patience: Patience
    daemon_runs: Callable[[str], bool] | None = None

    @property
    def function(self) -> Path:
        """The folder of the GPU in sysfs."""
        return self.place.host.sys_pci / self.place.pci_address


def failed(session: Session, target: ResetTarget) -> tuple[str, ...]:
    """All preconditions that fail, each with its remedy."""
    faults = (
        rights(target),
        open_holders(target.holders(), beside=persistence_daemon(target.place.host)),
        _listed(session, target),
        _fabric(session, target),
        _virtual(session, target),
        _model(target),
    )
    return tuple(fault for fault in faults if fault is not None)


def open_holders(holders: tuple[Holder, ...] | None, beside: int | None = None) -> str | None:
    """The holders that prevent a reset, except ``beside``: the persistence daemon closes the GPU on request."""
    if holders is None:
        return "its holders are unknown: run the service as root and in the node's own pid namespace"
    others = [holder for holder in holders if holder.pid != beside]
    names = ", ".join(process_names.describe(holder.command, holder.pid) for holder in others)
    return f"it is open in {names}: {nvidia_advice.how_to_stop(others)}" if others else None


def persistence_daemon(host: Host) -> int | None:
    """The pid of the process that serves the persistence daemon's socket, from the kernel; None if there is none."""
    for path in host.persistence_sockets:
        with suppress(OSError):
            return unix_sockets.listener(path) or None  # 0: a process in another pid namespace
    return None


def ask_before_reset(session: Session, target: ResetTarget, question: Callable[..., Any]) -> Any | None:  # noqa: ANN401 - depends on the function
    """The answer of the device; None if it is not supported, or if the device answers nothing until its reset."""
    return unless_silent(lambda: session.ask_optional(question, session.handle(target.place.gpu)), None)


def rights(target: ResetTarget) -> str | None:
    """A reset needs root."""
    return None if target.privileged else "it takes root: run the service as root"


def _listed(session: Session, target: ResetTarget) -> str | None:
    """Processes that the driver lists. A device that needs a reset lists none; then ``holders`` is the proof."""
    try:
        lists = [ask_before_reset(session, target, question) or [] for question in holders.lists(session)]
    except DeviceLostError:
        raise
    except DeviceError as error:
        return f"the driver does not list its processes ({error}): try again"
    pids = sorted({process.pid for listed in lists for process in listed})
    return f"the driver lists process {', '.join(map(str, pids))} on it: end it first" if pids else None


def _fabric(session: Session, target: ResetTarget) -> str | None:
    """Only Ampere needs the fabric manager. Its driver does not report it, so this searches for the process.

    A pod may run a program of that name; ``daemon_runs`` accepts only the node's own.
    """
    if ask_before_reset(session, target, pynvml.nvmlDeviceGetArchitecture) not in _NEED_A_FABRIC_MANAGER:
        return None
    if not target.function.exists():
        return f"it is unknown whether NVSwitches connect it: mount the node's {target.place.host.sys_pci}"
    functions = target.place.host.sys_pci.glob("*")  # also of NVSwitches whose links are down
    if not any(_read(at / "vendor") == _NVIDIA and _read(at / "class").startswith(_OTHER_BRIDGE) for at in functions):
        return None
    if target.daemon_runs is None:
        return "NVSwitches connect it and it is unknown whether the fabric manager runs: reboot the node instead"
    if target.daemon_runs(_FABRIC_MANAGER):
        return None
    return "NVSwitches connect it and the node's own fabric manager does not run: start nvidia-fabricmanager"


def _virtual(session: Session, target: ResetTarget) -> str | None:
    mode = ask_before_reset(session, target, pynvml.nvmlDeviceGetVirtualizationMode)
    if mode != pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU:
        return None
    return "it is a vGPU of a virtual machine: only the host can reset it; restart the virtual machine instead"


def _model(target: ResetTarget) -> str | None:
    if (_read(target.function / "vendor"), _read(target.function / "device")) != (_NVIDIA, _TESLA_T4):
        return None
    return "a Tesla T4 has no function-level reset: reboot the node instead"


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # callers treat unreadable as the careful answer
