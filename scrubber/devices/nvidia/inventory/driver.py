"""Which driver is loaded, told without NVML: the answer must not need a driver that is being kept free for a reset.

A proof holds for one instance of the driver. Its version does not name it, for the same one may be loaded again. What
does is the number of the module's directory in sysfs: the kernel numbers such directories one after the other, gives a
directory one number for its life, and comes round to a number again only after two thousand million others. The times
of that directory tell nothing: they change whenever the kernel forgets the inode and makes it anew.
"""

from __future__ import annotations

import re

from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.host import Host

_VERSION = re.compile(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)\s", re.MULTILINE)


def name(host: Host) -> str:
    """Version and instance of the loaded driver; DeviceError when there is none."""
    return f"nvidia {version(host)} {instance(host)}"


def version(host: Host) -> str:
    """Such as 580.95.05."""
    file = host.proc_driver / "version"
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _not_loaded(error) from error
    found = _VERSION.search(text)
    if found is None:
        raise DeviceError(f"cannot tell the driver's version: {file} does not say it")
    return found[1]


def instance(host: Host) -> str:
    """Another value means that the driver was loaded anew."""
    try:
        return f"{host.sys_module.stat().st_ino:x}"
    except OSError as error:
        raise _not_loaded(error) from error


def _not_loaded(error: OSError | UnicodeDecodeError) -> DeviceError:
    why = f"{error.filename}: {str(error.strerror).lower()}" if isinstance(error, OSError) else error
    return DeviceError(f"cannot find the NVIDIA driver: {why}; load it, or look at the kernel log for why it is not")
