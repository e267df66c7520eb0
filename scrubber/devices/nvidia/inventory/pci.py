"""Where a GPU sits: PCI addresses as the kernel spells them, and what the kernel says of that place."""

from __future__ import annotations

from typing import Any

from scrubber.devices.nvidia.host import Host


def address(info: Any) -> str:  # noqa: ANN401 - pynvml ships no types
    """As in sysfs: NVML's domain has eight digits and capital letters."""
    function = info.busId.rpartition(".")[2] or "0"
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{function}"


def numa_node(host: Host, place: str) -> int | None:
    """The memory that is near; None where the kernel knows of none (it says -1)."""
    try:
        node = int((host.sys_pci / place / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
