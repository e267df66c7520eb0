"""How the driver and the node stand, by files under a root: where the host's /proc/driver, /sys and so on are seen.

Only files that the kernel, the driver and its installer make; nothing is asked of the driver itself.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from scrubber.core.diagnosis.base import CheckFault, Room
from scrubber.node import safe_read

VENDOR = "0x10de"  # NVIDIA, on the PCI bus
_VERSION = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)*\b")
_LIBRARY = re.compile(rf"libnvidia-ml\.so\.({_VERSION.pattern})")
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib")
_DRIVER_ROOTS = ("", "run/nvidia/driver")  # the node's own, and that of a driver container


def driver(root: Path) -> str | CheckFault:
    """The version of the driver that is loaded; its own file is asked where the kernel's does not say."""
    said = safe_read.text(root / "sys/module/nvidia/version")
    if isinstance(said, str):
        return said.strip()
    told = safe_read.text(root / "proc/driver/nvidia/version")
    if isinstance(told, CheckFault):
        return told if said.absent else said
    found = _VERSION.search(told)
    return found[0] if found else CheckFault(f"{root / 'proc/driver/nvidia/version'} tells no version")


def libraries(root: Path) -> tuple[str, ...]:
    """The versions of the driver's library that are found in the usual places, once each."""
    directories = [root / driver_root / place for driver_root in _DRIVER_ROOTS for place in _LIBRARIES]
    listed = [names for names in map(safe_read.names, directories) if not isinstance(names, CheckFault)]
    found = [_LIBRARY.fullmatch(name) for names in listed for name in names]
    return tuple(sorted({match[1] for match in found if match}))


def options(root: Path) -> dict[str, str] | CheckFault:
    """What the driver says it was loaded with, without the quotation marks."""
    said = safe_read.text(root / "proc/driver/nvidia/params")
    if isinstance(said, CheckFault):
        return said
    pairs = (line.partition(":") for line in said.splitlines() if ":" in line)
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def shared_with_guests(root: Path) -> tuple[str, ...] | CheckFault:
    """What tells that virtual machines are given parts of these GPUs."""
    module = safe_read.there(root / "sys/module/nvidia_vgpu_vfio")
    if isinstance(module, CheckFault):
        return module
    devices = root / "sys/bus/pci/devices"
    addresses = safe_read.names(devices)
    if isinstance(addresses, CheckFault):
        return addresses
    signs = ["module nvidia_vgpu_vfio is loaded"] if module else []
    for address in addresses:
        functions = _virtual_functions(devices / address)
        if isinstance(functions, CheckFault):
            return functions
        if functions:
            signs.append(f"{address} has {functions} virtual functions")
    return tuple(signs)


def _virtual_functions(device: Path) -> int | CheckFault:
    vendor = safe_read.text(device / "vendor")
    if isinstance(vendor, CheckFault):
        return 0 if vendor.absent else vendor  # unplugged meanwhile
    if vendor.strip().lower() != VENDOR:
        return 0
    count = safe_read.text(device / "sriov_numvfs")
    if isinstance(count, CheckFault):
        return 0 if count.absent else count  # it can have none
    return int(count) if count.strip().isdecimal() else CheckFault(f"{device / 'sriov_numvfs'} holds no number")


def persistenced(root: Path) -> bool | CheckFault:
    """Whether nvidia-persistenced has its socket there."""
    try:
        return stat.S_ISSOCK((root / "run/nvidia-persistenced/socket").stat().st_mode)
    except FileNotFoundError:
        return False
    except OSError as error:
        return safe_read.fault(error)


def cgroups(root: Path) -> str | CheckFault:
    """Which version of control groups is in use, in words; two can be, side by side."""
    place = root / "sys/fs/cgroup"
    found = safe_read.names(place)
    if isinstance(found, CheckFault):
        return found
    if "cgroup.controllers" in found:
        return "version 2"
    beside = safe_read.there(place / "unified/cgroup.controllers")
    if isinstance(beside, CheckFault):
        return beside
    first = bool({"memory", "pids", "systemd"} & set(found))
    if not first:
        return CheckFault(f"{place} is empty") if not beside else "version 2, below unified"
    return "versions 1 and 2 side by side" if beside else "version 1"


def room(directory: Path) -> Room | CheckFault:
    """What a filesystem has left for those who are not root: root's reserve is not for ledgers."""
    try:
        found = os.statvfs(directory)
    except OSError as error:
        return safe_read.fault(error)
    return Room(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)
