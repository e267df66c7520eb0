"""The kernel's files of a PCI device: its identity, and its function-level reset.

This module writes only to ``reset``. ``remove`` and ``unbind`` hang in the kernel while a process uses the device.
"""

from __future__ import annotations

import errno
from pathlib import Path

from scrubber.devices import shortage
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.reset.attempt import Attempt, Done, InUse, NoPermission, ResetFailed, Unsupported

_NVIDIA = "0x10de"
_OTHER_BRIDGE = "0x0680"  # the PCI class of NVSwitches
_TESLA_T4 = "0x1eb8"
_DISPLAYS = "nvidia_drm"
_COUNTING = frozenset({"nvidia_uvm", "nvidia_modeset", _DISPLAYS})  # the module count includes their users
_REFUSALS: dict[int, Attempt] = {
    errno.EBUSY: InUse(),
    errno.EACCES: NoPermission(),
    errno.EPERM: NoPermission(),
    errno.EROFS: Unsupported("/sys is mounted read-only: mount it writable"),
    errno.ENOTTY: Unsupported("the kernel knows no way to reset this device"),
    errno.ENOENT: Unsupported("the kernel offers no reset of this device"),
}


def reset(place: Path) -> Attempt:
    """A function-level reset, if that is the kernel's first method. It cannot be interrupted."""
    methods = _read(place / "reset_method").split()
    if methods[:1] != ["flr"]:
        return Unsupported(f"the kernel would reset it by {' '.join(methods) or 'no method that it names'}, not flr")
    try:
        (place / "reset").write_text("1")
    except OSError as error:
        shortage.demand_none(error)
        return _REFUSALS.get(error.errno or 0, ResetFailed(f"the kernel's reset failed: {error.strerror}"))
    return Done()


def clients(module: Path) -> str | None:
    """Which kernel module has users, by the reference counts; None only if the driver provably has no user.

    There is no count for one device. The driver module counts every open device node, also of processes that this
    service does not see. Each dependent module counts once there, and has a count of its own. No count shows a device
    that the kernel opened for its console or displays, which nvidia_drm does in modeset mode. What modules of other
    vendors do is unknown.
    """
    above = [_directory(module / "holders"), _directory(module.parent / "nvidia_modeset/holders")]
    if above[0] is None:
        return f"the users of the driver are unknown: mount {module / 'holders'}"
    names = {*above[0], *(above[1] or ())}
    if unknown := sorted(names - _COUNTING):
        return f"module {', '.join(unknown)} uses the driver for an unknown device: unload it"
    if _DISPLAYS in names and _read(module.parent / _DISPLAYS / "parameters/modeset") != "N":
        return f"module {_DISPLAYS} may have it open for a display: load it with modeset=0"
    busy = [name for name in (module.name, *sorted(names)) if not _idle(module.parent / name)]
    fault = f"module {', '.join(busy)} is not known to be without users, of this device or of others: stop them"
    return fault if busy else None


def _idle(module: Path) -> bool:
    """Whether only the dependent modules use the module."""
    above = _directory(module / "holders")
    return above is not None and _read(module / "refcnt") == str(len(above))


def _directory(path: Path) -> tuple[str, ...] | None:
    try:
        return tuple(entry.name for entry in path.iterdir())
    except OSError:
        return None


def is_tesla_t4(place: Path) -> bool:
    """Whether the device is a Tesla T4, which has no function-level reset."""
    return _read(place / "vendor") == _NVIDIA and _read(place / "device") == _TESLA_T4


def has_switches(host: Host) -> bool:
    """Whether this node has NVSwitches, also while their links are down."""
    functions = host.sys_pci.glob("*")
    return any(_read(at / "vendor") == _NVIDIA and _read(at / "class").startswith(_OTHER_BRIDGE) for at in functions)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # callers treat unreadable as the careful answer
