"""What must hold before a reset, because a reset takes everything on a GPU down with it."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pynvml

from scrubber.core.model import Holder
from scrubber.devices.base import DeviceError, DeviceLostError, Users
from scrubber.devices.nvidia import holders
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library, ResetRequiredError, Session
from scrubber.devices.nvidia.reset import sysfs
from scrubber.devices.nvidia.reset.pending_restore import PendingRestores
from scrubber.ground import process_names

SECONDS = 60.0  # for a reset, where nobody says how long its step has

_FABRIC_MANAGER = "nv-fabricmanager"
_NEED_A_FABRIC_MANAGER = (pynvml.NVML_DEVICE_ARCH_AMPERE, pynvml.NVML_DEVICE_ARCH_UNKNOWN, None)
_PERSISTENCE_SOCKET = "run/nvidia-persistenced/socket"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each part of a reset may take, in seconds: shares of what the step has for all of it."""

    leaving: float  # until the persistence daemon has let go; before each means, and once more before the kernel's
    tool: float  # for nvidia-smi; its end, if it must be put down, takes a tenth of it more
    coming_back: float

    @classmethod
    def within(cls, seconds: float) -> Self:
        """What is left over is for the questions before and after it."""
        return cls(leaving=0.04 * seconds, tool=0.5 * seconds, coming_back=0.25 * seconds)


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """A whole GPU that is to be reset.

    ``holders`` names every process that has open what goes down with it, bystanders and the service included; None when
    that cannot be proven. ``daemon_runs`` knows whether the node's own root runs a program of that name; None when
    nobody can tell.
    """

    uuid: str
    pci_address: str
    host: Host
    means: tuple[str, ...]
    holders: Users
    library: Library
    locks: tuple[Path, ...]  # its own, and those of all that go down with it
    notes: PendingRestores | None = None  # where to keep what the reset must bring back
    privileged: bool = field(default_factory=lambda: os.geteuid() == 0)
    patience: Patience = field(default_factory=lambda: Patience.within(SECONDS))
    daemon_runs: Callable[[str], bool] | None = None

    @property
    def function(self) -> Path:
        """Where the kernel shows it."""
        return self.host.sys_pci / self.pci_address


def unmet(session: Session, target: ResetTarget) -> tuple[str, ...]:
    """All that stands in the way, each with its remedy."""
    found = (
        rights(target),
        in_the_way(target.holders(), beside=persistence_daemon(target.host)),
        _listed(session, target),
        _fabric(session, target),
        _virtual(session, target),
        _model(target),
    )
    return tuple(fault for fault in found if fault is not None)


def in_the_way(holders: tuple[Holder, ...] | None, beside: int | None = None) -> str | None:
    """Who must leave first. The persistence daemon may stay at first: it lets go when the mode is switched off."""
    if holders is None:
        return "nobody can tell who has it open: run the service as root and in the node's own pid namespace"
    names = [process_names.describe(user.command, user.pid) for user in holders if user.pid != beside]
    return f"it is open in {', '.join(names)}: stop that first" if names else None


def persistence_daemon(host: Host) -> int | None:
    """The process that listens at the persistence daemon's socket, as the kernel knows it; None when nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(2.0)
        try:
            line.connect(str(host.root / _PERSISTENCE_SOCKET))
        except OSError:
            return None
        credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid or None  # 0: it is in a pid namespace that we do not see


def answered(session: Session, target: ResetTarget, question: Callable[..., Any]) -> Any | None:  # noqa: ANN401 - as many as questions
    """What the device says; None when it does not know, or says nothing more before it has been reset."""
    try:
        return session.told(question, session.handle(target.uuid))
    except ResetRequiredError:
        return None


def rights(target: ResetTarget) -> str | None:
    """Whoever resets a device must be root."""
    return None if target.privileged else "it takes root: run the service as root"


def _listed(session: Session, target: ResetTarget) -> str | None:
    """Whom the driver names. A device that wants a reset lists nobody: the look at who has it open is the proof."""
    try:
        lists = [answered(session, target, question) or [] for question in holders.LISTS]
    except DeviceLostError:
        raise
    except DeviceError as error:
        return f"the driver does not say who is on it ({error}): try again"
    pids = sorted({process.pid for listed in lists for process in listed})
    return f"the driver lists process {', '.join(map(str, pids))} on it: end it first" if pids else None


def _fabric(session: Session, target: ResetTarget) -> str | None:
    """Ampere alone needs the fabric manager, and its driver does not tell of it: so its process is looked for.

    Anybody can name a program so; that it is the node's own is for ``daemon_runs`` to know.
    """
    if answered(session, target, pynvml.nvmlDeviceGetArchitecture) not in _NEED_A_FABRIC_MANAGER:
        return None
    if not target.function.exists():
        return f"nobody can tell whether NVSwitches join it: show the node's {target.host.sys_pci}"
    if not sysfs.has_switches(target.host):
        return None
    if target.daemon_runs is None:
        return "NVSwitches join it and nobody can tell whether the fabric manager runs: reboot the node instead"
    if target.daemon_runs(_FABRIC_MANAGER):
        return None
    return "NVSwitches join it and the node's own fabric manager does not run: start nvidia-fabricmanager"


def _virtual(session: Session, target: ResetTarget) -> str | None:
    mode = answered(session, target, pynvml.nvmlDeviceGetVirtualizationMode)
    if mode != pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU:
        return None
    return "it is a vGPU of a virtual machine: only the host can reset it; give it a policy whose paths do not reset"


def _model(target: ResetTarget) -> str | None:
    if not sysfs.is_tesla_t4(target.function):
        return None
    return "a Tesla T4 has no function-level reset: reboot the node, or give it a policy whose paths do not reset"
