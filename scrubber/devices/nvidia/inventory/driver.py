"""Which driver is loaded, without NVML: the answer must be available while the driver is released for a reset.

A proof is valid for one instance of the driver. The version does not identify an instance, because the same version can
be loaded again. The inode number of the module's directory in sysfs does: the kernel counts these numbers up, keeps the
number while the directory exists, and repeats one only after two thousand million others. The times of the directory
are no use: they change when the kernel drops the inode from its cache and creates it again.
"""

from __future__ import annotations

import re

from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.host import Host

_VERSION = re.compile(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)\s", re.MULTILINE)


def name(host: Host) -> str:
    """Version and instance of the loaded driver; DeviceError if no driver is loaded."""
    return f"nvidia {version(host)} {instance(host)}"


def version(host: Host) -> str:
    """The version, such as 580.95.05."""
    file = host.proc_driver / "version"
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _not_loaded(error) from error
    found = _VERSION.search(text)
    if found is None:
        raise DeviceError(f"cannot tell the driver's version: {file} does not name it")
    return found[1]


def instance(host: Host) -> str:
    """Identifies this load of the driver: a different value means that the driver was loaded again."""
    try:
        return f"{host.sys_module.stat().st_ino:x}"
    except OSError as error:
        raise _not_loaded(error) from error


def _not_loaded(error: OSError | UnicodeDecodeError) -> DeviceError:
    why = f"{error.filename}: {str(error.strerror).lower()}" if isinstance(error, OSError) else error
    return DeviceError(f"cannot find the NVIDIA driver: {why}; load it, or look at the kernel log for why it is not")
