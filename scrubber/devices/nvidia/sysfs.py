"""The kernel's own files of a PCI device: what it is, and its function-level reset.

Only ``reset`` is ever written. ``remove`` and ``unbind`` wait for ever inside the kernel while anybody uses the device.
"""

from __future__ import annotations

import errno
from pathlib import Path

from scrubber.devices.nvidia.attempt import Attempt, Done, Failed, InUse, NoPermission, Unsupported
from scrubber.devices.nvidia.host import Host

_NVIDIA = "0x10de"
_OTHER_BRIDGE = "0x0680"  # the class of NVSwitches, as far as it is told apart here
_TESLA_T4 = "0x1eb8"
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
        return _REFUSALS.get(error.errno or 0, Failed(f"the kernel's reset failed: {error.strerror}"))
    return Done()


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
