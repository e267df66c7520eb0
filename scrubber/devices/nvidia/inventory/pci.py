"""PCI addresses in the format of the kernel, and the NUMA node of an address."""

from __future__ import annotations

from typing import Any

from scrubber.devices.nvidia.host import Host


def address(info: Any) -> str:  # noqa: ANN401 - pynvml ships no types
    """The address as in sysfs. NVML writes the domain with eight digits and upper case."""
    function = info.busId.rpartition(".")[2] or "0"
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{function}"


def numa_node(host: Host, place: str) -> int | None:
    """The NUMA node of a device; None if the kernel reports none (-1)."""
    try:
        node = int((host.sys_pci / place / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
