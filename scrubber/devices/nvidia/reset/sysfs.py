"""The kernel's own files of a PCI device: what it is, and its function-level reset.

Only ``reset`` is ever written. ``remove`` and ``unbind`` wait for ever inside the kernel while anybody uses the device.
"""

from __future__ import annotations

import errno
from pathlib import Path

from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.reset.attempt import Attempt, Done, InUse, NoPermission, ResetFailed, Unsupported

_NVIDIA = "0x10de"
_OTHER_BRIDGE = "0x0680"  # the class of NVSwitches, as far as it is told apart here
_TESLA_T4 = "0x1eb8"
_DISPLAYS = "nvidia_drm"
_COUNTING = frozenset({"nvidia_uvm", "nvidia_modeset", _DISPLAYS})  # their users have nodes open, which count
_REFUSALS: dict[int, Attempt] = {
    errno.EBUSY: InUse(),
    errno.EACCES: NoPermission(),
    errno.EPERM: NoPermission(),
    errno.EROFS: Unsupported("/sys is mounted read-only: mount it writable"),
    errno.ENOTTY: Unsupported("the kernel knows no way to reset this device"),
    errno.ENOENT: Unsupported("the kernel offers no reset of this device"),
}


def reset(place: Path) -> Attempt:
    """A function-level reset, if that is what the kernel would do first. It cannot be interrupted."""
    methods = _read(place / "reset_method").split()
    if methods[:1] != ["flr"]:
        return Unsupported(f"the kernel would reset it by {' '.join(methods) or 'no method that it tells'}, not flr")
    try:
        (place / "reset").write_text("1")
    except OSError as error:
        return _REFUSALS.get(error.errno or 0, ResetFailed(f"the kernel's reset failed: {error.strerror}"))
    return Done()


def clients(module: Path) -> str | None:
    """Who, by the count of the driver itself, uses any of its devices; None only where that is provably nobody.

    There is no such count of one device: the driver's module counts whoever has any of its nodes open, also where we do
    not see the process. Each module that is built upon it counts once, and has a count of its own. What nobody counts
    is a device that the kernel opened for its own console or its displays, which nvidia_drm does in its modeset mode;
    and what modules of others do is not known.
    """
    above = [_directory(module / "holders"), _directory(module.parent / "nvidia_modeset/holders")]
    if above[0] is None:
        return f"nobody can tell who uses the driver: show {module / 'holders'}"
    names = {*above[0], *(above[1] or ())}
    if strange := sorted(names - _COUNTING):
        return f"module {', '.join(strange)} uses the driver, and nobody can tell for which device: unload it"
    if _DISPLAYS in names and _read(module.parent / _DISPLAYS / "parameters/modeset") != "N":
        return f"module {_DISPLAYS} may have it open for a display: load it with modeset=0"
    busy = [name for name in (module.name, *sorted(names)) if not _idle(module.parent / name)]
    told = f"module {', '.join(busy)} is not known to be without users, of this device or of others: stop them"
    return told if busy else None


def _idle(module: Path) -> bool:
    """Whether nobody uses it but the modules built upon it."""
    above = _directory(module / "holders")
    return above is not None and _read(module / "refcnt") == str(len(above))


def _directory(path: Path) -> tuple[str, ...] | None:
    try:
        return tuple(entry.name for entry in path.iterdir())
    except OSError:
        return None


def is_tesla_t4(place: Path) -> bool:
    """Whether it is the model without a function-level reset."""
    return _read(place / "vendor") == _NVIDIA and _read(place / "device") == _TESLA_T4


def has_switches(host: Host) -> bool:
    """Whether this node has NVSwitches of its own, also while their links are down."""
    functions = host.sys_pci.glob("*")
    return any(_read(at / "vendor") == _NVIDIA and _read(at / "class").startswith(_OTHER_BRIDGE) for at in functions)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # no news: whoever asks takes it for the lesser answer
