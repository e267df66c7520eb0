"""State of the driver (libraries, options, bus) and node (cgroups, disk, kernel log), from /proc and /sys.

Only files of the kernel, the driver, its installer and the service are read; the driver itself is not called.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

from asyncinotify import Inotify

from autoclave.doctor.facts import safe_read, service_facts
from autoclave.doctor.node_facts import CheckFault, Node, Room, fact
from scrub_api import views
from scrubber.devices.nvidia.host import Host
from scrubber.node import kernellog

NVIDIA = "nvidia"  # the backend
VENDOR = "0x10de"  # NVIDIA, on the PCI bus
DISPLAY = "0x03"  # the class of GPUs there
_VERSION = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)*\b")
_LIBRARY = re.compile(rf"libnvidia-ml\.so\.({_VERSION.pattern})")
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib")
_DRIVER_ROOTS = ("", "run/nvidia/driver")  # the node's own, and that of a driver container


@fact
def driver(node: Node) -> str | CheckFault:
    """The version of the loaded driver, from the kernel's file or else from the driver's."""
    version = safe_read.text(node.host_root / "sys/module/nvidia/version")
    if isinstance(version, str):
        return version.strip()
    text = safe_read.text(node.host_root / "proc/driver/nvidia/version")
    if isinstance(text, CheckFault):
        return text if version.absent else version
    match = _VERSION.search(text)
    return match[0] if match else CheckFault(f"{node.host_root / 'proc/driver/nvidia/version'} names no version")


def guards_nvidia(node: Node) -> bool:
    """Whether the service guards NVIDIA GPUs. Without an answer: whether there is a driver or a GPU of NVIDIA."""
    status = service_facts.status(node)
    if status is not None:
        return status.service.backend == NVIDIA
    version = driver(node)
    return isinstance(version, str) or not version.absent or bool(on_bus(node))


def driver_is_loaded(node: Node) -> bool:
    """Whether to check the driver of NVIDIA further: its absence has a finding of its own."""
    return guards_nvidia(node) and isinstance(driver(node), str)


@fact
def libraries(node: Node) -> tuple[str, ...]:
    """The versions of the driver's library in the usual directories, without duplicates."""
    directories = [node.host_root / driver_root / place for driver_root in _DRIVER_ROOTS for place in _LIBRARIES]
    listed = [names for names in map(safe_read.names, directories) if not isinstance(names, CheckFault)]
    matches = [_LIBRARY.fullmatch(name) for names in listed for name in names]
    return tuple(sorted({match[1] for match in matches if match}))


@fact
def options(node: Node) -> dict[str, str] | CheckFault:
    """The options that the driver was loaded with, without quotation marks."""
    text = safe_read.text(node.host_root / "proc/driver/nvidia/params")
    if isinstance(text, CheckFault):
        return text
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}


@fact
def on_bus(node: Node) -> tuple[str, ...]:
    """The PCI addresses of NVIDIA's GPUs, with or without a driver; none where the bus cannot be seen."""
    devices = node.host_root / "sys/bus/pci/devices"
    addresses = safe_read.names(devices)
    if isinstance(addresses, CheckFault):
        return ()
    gpus = []
    for address in addresses:
        vendor, kind = safe_read.text(devices / address / "vendor"), safe_read.text(devices / address / "class")
        nvidia = isinstance(vendor, str) and vendor.strip().lower() == VENDOR
        if nvidia and isinstance(kind, str) and kind.startswith(DISPLAY):
            gpus.append(address)
    return tuple(gpus)


@fact
def shared_with_guests(node: Node) -> tuple[str, ...] | CheckFault:
    """Signs that parts of these GPUs are given to virtual machines."""
    module = safe_read.there(node.host_root / "sys/module/nvidia_vgpu_vfio")
    if isinstance(module, CheckFault):
        return module
    devices = node.host_root / "sys/bus/pci/devices"
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
        return 0 if vendor.absent else vendor  # the device was removed meanwhile
    if vendor.strip().lower() != VENDOR:
        return 0
    count = safe_read.text(device / "sriov_numvfs")
    if isinstance(count, CheckFault):
        return 0 if count.absent else count  # the device does not support virtual functions
    return int(count) if count.strip().isdecimal() else CheckFault(f"{device / 'sriov_numvfs'} holds no number")


@fact
def numa_gpus(node: Node) -> tuple[str, ...] | CheckFault:
    """The PCI addresses of GPUs whose memory the driver has given to Linux: only they have this file."""
    folder = node.host_root / "proc/driver/nvidia/gpus"
    addresses = safe_read.names(folder)
    if isinstance(addresses, CheckFault):
        return () if addresses.absent else addresses
    is_node = {address: safe_read.there(folder / address / "numa_status") for address in addresses}
    faults = [answer for answer in is_node.values() if isinstance(answer, CheckFault)]
    return faults[0] if faults else tuple(address for address, there in is_node.items() if there)


@fact
def persistenced(node: Node) -> bool | CheckFault:
    """Whether a socket of nvidia-persistenced exists."""
    for path in Host(node.host_root).persistence_sockets:
        try:
            if stat.S_ISSOCK(path.stat().st_mode):
                return True
        except FileNotFoundError:
            continue
        except OSError as error:
            return safe_read.fault(error)
    return False


@fact
def persistence_kept(_node: Node, status: views.Status) -> bool:
    """Whether persistence mode was on, as NVML said, when the service first saw each GPU: each scrub restores it.

    The service keeps what it saw. The driver itself is not asked: whoever asks it has the GPUs open.
    """
    settings = Path(status.service.state_dir) / "settings"
    gpus = [device.device for device in status.devices if not device.mig]
    for gpu in gpus:
        text = safe_read.text(settings / f"{gpu}.json")
        try:
            seen = json.loads(text) if isinstance(text, str) else None
        except ValueError:
            return False
        if not isinstance(seen, dict) or seen.get("persistence") is not True:
            return False
    return bool(gpus)


@fact
def on_ec2(node: Node) -> bool:
    """Whether the firmware says that the node is an instance of Amazon EC2."""
    vendor = safe_read.text(node.host_root / "sys/class/dmi/id/sys_vendor")
    return isinstance(vendor, str) and vendor.strip() == "Amazon EC2"


@fact
def cgroups(node: Node) -> str | CheckFault:
    """The version of control groups in use, in words; both versions can be in use."""
    folder = node.host_root / "sys/fs/cgroup"
    names = safe_read.names(folder)
    if isinstance(names, CheckFault):
        return names
    if "cgroup.controllers" in names:
        return "version 2"
    beside = safe_read.there(folder / "unified/cgroup.controllers")
    if isinstance(beside, CheckFault):
        return beside
    first = bool({"memory", "pids", "systemd"} & set(names))
    if not first:
        return CheckFault(f"{folder} is empty") if not beside else "version 2, below unified"
    return "versions 1 and 2 side by side" if beside else "version 1"


@fact
def room(_node: Node, directory: str) -> Room | CheckFault:
    """The free space and inodes of a file system."""
    return room_in(directory)


def room_in(directory: str) -> Room | CheckFault:
    """The free space and inodes of the file system of a directory, without the reserve of root."""
    try:
        system = os.statvfs(directory)
    except OSError as error:
        return safe_read.fault(error)
    return Room(system.f_bavail * system.f_frsize, system.f_favail if system.f_files else None)


@fact
def file_watches(_node: Node) -> CheckFault | None:
    """Why this user cannot watch files; None if it can."""
    try:
        Inotify().close()
    except OSError as error:
        return safe_read.fault(error)
    return None


@fact
def kernel_log(node: Node) -> CheckFault | None:
    """Why this process cannot read the kernel log; None if it can."""
    try:
        kernellog.check_readable(node.host_root / "dev/kmsg")
    except OSError as error:
        return safe_read.fault(error)
    return None
