"""The kubelet's file ``dra_manager_state``: the claims of its pods. It does not say whether a claim is prepared.

Copies ``PK/cm/dra/state``: JSON in JSON, with a CRC-32 checksum.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from demo.standins.checkpoint import CorruptCheckpoint
from plugin.kubelet_api import dra_pb2

NAME = "dra_manager_state"
_ABOUT = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1"}


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device of a claim, as the driver has answered."""

    pool: str
    name: str
    requests: tuple[str, ...]
    cdi: tuple[str, ...]
    share: str | None = None

    @classmethod
    def of(cls, device: dra_pb2.Device) -> Self:
        """From the answer of a driver."""
        share = device.share_id if device.HasField("share_id") else None
        return cls(
            device.pool_name, device.device_name, tuple(device.request_names), tuple(device.cdi_device_ids), share
        )


@dataclass(slots=True, eq=False)
class ClaimInfo:
    """A claim that a pod of this node has, or had until its end."""

    uid: str
    name: str
    namespace: str
    pods: set[str] = field(default_factory=set)  # UIDs
    drivers: dict[str, list[PreparedDevice]] = field(default_factory=dict)
    prepared: bool = False  # lost when the kubelet ends


def write(directory: Path, infos: Iterable[ClaimInfo]) -> None:
    """Replace the file atomically."""
    data = json.dumps({**_ABOUT, "ClaimInfoStateList": [_entry(info) for info in infos]}, separators=(",", ":"))
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=directory)  # mode 0600
    with os.fdopen(descriptor, "w") as file:
        json.dump({"Data": data, "Checksum": zlib.crc32(data.encode())}, file, separators=(",", ":"))
    Path(temporary).replace(directory / NAME)


def read(directory: Path) -> list[ClaimInfo]:
    """The claims in the file, if there is one."""
    try:
        text = (directory / NAME).read_text()
    except FileNotFoundError:
        return []
    try:
        content = json.loads(text)
        if zlib.crc32(content["Data"].encode()) != content["Checksum"]:
            raise CorruptCheckpoint(f"{directory / NAME}: checkpoint is corrupted")
        return [_info(entry) for entry in json.loads(content["Data"])["ClaimInfoStateList"] or ()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(f"cannot read {directory / NAME}: {error!r}") from error


def _entry(info: ClaimInfo) -> dict[str, Any]:
    return {
        "ClaimUID": info.uid,
        "ClaimName": info.name,
        "Namespace": info.namespace,
        "PodUIDs": {pod: {} for pod in sorted(info.pods)},
        "DriverState": {
            driver: {"Devices": [_device(device) for device in devices] or None}
            for driver, devices in info.drivers.items()
        },
    }


def _device(device: PreparedDevice) -> dict[str, Any]:
    return {
        "PoolName": device.pool,
        "DeviceName": device.name,
        "ShareID": device.share,
        "RequestNames": list(device.requests),
        "CDIDeviceIDs": list(device.cdi),
    }


def _info(entry: dict[str, Any]) -> ClaimInfo:
    drivers = {
        driver: [
            PreparedDevice(
                each["PoolName"],
                each["DeviceName"],
                tuple(each["RequestNames"] or ()),
                tuple(each["CDIDeviceIDs"] or ()),
                each["ShareID"],
            )
            for each in state["Devices"] or ()
        ]
        for driver, state in entry["DriverState"].items()
    }
    return ClaimInfo(entry["ClaimUID"], entry["ClaimName"], entry["Namespace"], set(entry["PodUIDs"]), drivers)
