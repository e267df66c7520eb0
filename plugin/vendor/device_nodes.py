"""Which device nodes a container may get: by their path, and by the device that they open.

The kernel uses the number of a node, and not its name. So each number must be the one that belongs to the name: the
number that a CDI specification states, and the number of each node that this process can see.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plugin.devices import pci_bus_id
from scrub_api.device_messages import ReportedDevice

DRIVERS = Path("/proc/devices")
PCI = Path("/sys/bus/pci/devices")
HOSTS = (Path("/"), Path("/host"))  # where this process may see the files of the host
_NVIDIA = 195  # the major number of NVIDIA's driver, on every node


class _Kind(NamedTuple):
    """Device nodes of one driver."""

    paths: re.Pattern[str]  # the group, if there is one, is the minor number
    driver: str  # as /proc/devices names it
    shared: bool = True  # each container may have them
    minor: int | None = None


_KINDS = (
    _Kind(re.compile(r"/dev/nvidia([0-9]+)"), "nvidia", shared=False),
    _Kind(re.compile(r"/dev/nvidia-caps/nvidia-cap([0-9]+)"), "nvidia-caps", shared=False),
    _Kind(re.compile(r"/dev/dri/(?:card|renderD)([0-9]+)"), "drm", shared=False),
    _Kind(re.compile(r"/dev/nvidiactl"), "nvidia", minor=255),
    _Kind(re.compile(r"/dev/nvidia-modeset"), "nvidia", minor=254),
    _Kind(re.compile(r"/dev/nvidia-uvm"), "nvidia-uvm", minor=0),
    _Kind(re.compile(r"/dev/nvidia-uvm-tools"), "nvidia-uvm", minor=1),
    _Kind(re.compile(r"/dev/nvidia-caps-imex-channels/channel([0-9]+)"), "nvidia-caps-imex-channels"),
    _Kind(re.compile(r"/dev/nvidia-fs[0-9]*"), "nvidia-fs"),  # GPUDirect Storage
    _Kind(re.compile(r"/dev/gdrdrv"), "gdrdrv"),  # GDRCopy
    _Kind(re.compile(r"/dev/infiniband/uverbs[0-9]+"), "infiniband_verbs"),  # MOFED
    _Kind(re.compile(r"/dev/infiniband/rdma_cm"), "misc"),
)


def fault(node: Mapping[str, Any], taken: Collection[ReportedDevice]) -> str:
    """Why a container with these devices must not have a device node; empty if it may. The keys are in lower case."""
    path = str(node.get("path") or "")
    host = str(node.get("hostpath") or path)
    kind = next((kind for kind in _KINDS if kind.paths.fullmatch(path)), None)
    if kind is None or not (kind.shared or _belongs(path, taken)):
        return f"names the device node {path!r}, which was not granted"
    if not (host.endswith(path) and plain(host)):
        return f"takes {path} from {host!r}, which is not the same path below the root of the driver"
    if node.get("type") not in (None, "", "c", "u"):
        return f"names {path} with the type {node['type']!r}, and it is a character device"
    for number in _numbers(node, host):
        if not _opens(number, kind, path):
            return f"names {path} with the number {number}, which is not its own"
    return ""


def plain(path: str) -> bool:
    """Whether a path of the host has its shortest spelling, and does not lead through a process."""
    shown = path.isprintable() and path.startswith("/") and not path.startswith("/proc/")
    return shown and shortest(path) == path


def shortest(text: str) -> str:
    """The shortest spelling of the paths in a text."""
    begin, *names = text.split("/")
    kept: list[str] = []
    for name in names:
        if name == ".." and kept and kept[-1] != "..":
            kept.pop()
        elif name not in ("", "."):
            kept.append(name)
    return "/".join((begin, *kept)) or text[:1]


def _belongs(path: str, taken: Collection[ReportedDevice]) -> bool:
    """Whether the node is a device's own, or a node for graphics at its PCI address."""
    if any(path in device.nodes for device in taken):
        return True
    name = path.removeprefix("/dev/dri/")
    addresses = {pci_bus_id(device) for device in taken} - {""}
    return name != path and any((PCI / address / "drm" / name).exists() for address in addresses)


def _numbers(node: Mapping[str, Any], host: str) -> Iterator[str]:
    """The numbers of a node, as major:minor: the one that is stated, and the one that the path leads to."""
    if node.get("major"):  # without a minor number, that is 0: NVIDIA's driver leaves it out
        yield f"{node['major']}:{node.get('minor') or 0}"
    for root in HOSTS:
        file = root / host.lstrip("/")
        try:
            status = file.stat()  # of what a link leads to: container runtimes follow it
        except (FileNotFoundError, NotADirectoryError):
            if file.is_symlink():
                yield "none"
        except OSError:
            yield "none"
        else:
            is_device = stat.S_ISCHR(status.st_mode)
            yield f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" if is_device else "none"


def _opens(number: str, kind: _Kind, path: str) -> bool:
    """Whether the number belongs to the driver, and to this node of the driver."""
    listed = DRIVERS.read_text().partition("Block devices")[0].splitlines()
    majors = {line.split()[0] for line in listed if line.split()[1:] == [kind.driver]}
    if kind.driver == "nvidia":
        majors.add(str(_NVIDIA))
    major, _, minor = number.partition(":")
    match = kind.paths.fullmatch(path)
    digits = match[1] if match and match.lastindex else kind.minor
    return major in majors and (digits is None or minor == str(int(digits)))
