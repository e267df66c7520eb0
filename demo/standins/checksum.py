"""The checksum of the kubelet's checkpoint: FNV-1a (32 bits) over Go's printed form of the data.

The printed form is that of the Go library spew (``%#v``, keys sorted) for the kubelet's types; see
``pkg/util/hash``, ``pkg/kubelet/checkpointmanager/checksum`` and ``DM/checkpoint/checkpoint.go``. It reproduces the
checksums of files from real kubelets: tests/standins/test_standins.py.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TypedDict

OFFSET, PRIME = 0x811C9DC5, 0x01000193


class DeviceEntry(TypedDict):
    """The devices of one resource for one container, with the field names of the file."""

    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[str, list[str]]  # NUMA node or "-1", to ids
    AllocResp: str  # base64


def checksum(entries: Sequence[DeviceEntry] | None, registered: Mapping[str, Sequence[str]]) -> int:
    """The checksum that the kubelet writes for this data."""
    printed = (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){_entries(entries)}"
        f" RegisteredDevices:(map[string][]string){_map(registered, sorted(registered))}}}"
    )
    result = OFFSET
    for byte in printed.encode():
        result = (result ^ byte) * PRIME & 0xFFFFFFFF
    return result


def _entries(entries: Sequence[DeviceEntry] | None) -> str:
    if entries is None:
        return "<nil>"
    return _list([_entry(entry) for entry in entries])


def _entry(entry: DeviceEntry) -> str:
    nodes = _map(entry["DeviceIDs"], sorted(entry["DeviceIDs"], key=int))
    response = [str(byte) for byte in base64.b64decode(entry["AllocResp"])]
    return (
        f"{{PodUID:(string){entry['PodUID']} ContainerName:(string){entry['ContainerName']}"
        f" ResourceName:(string){entry['ResourceName']} DeviceIDs:(checkpoint.DevicesPerNUMA){nodes}"
        f" AllocResp:([]uint8){_list(response)}}}"
    )


def _map(values: Mapping[str, Sequence[str]], keys: Sequence[str]) -> str:
    """A map in the order of these keys: Go sorts names as text and NUMA nodes as numbers."""
    return "map" + _list([f"{key}:{_list(values[key])}" for key in keys])


def _list(items: Sequence[str]) -> str:
    return f"[{' '.join(items)}]"
