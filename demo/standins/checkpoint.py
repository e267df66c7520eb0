"""The kubelet's checkpoint file: replaced atomically, and valid only with its checksum."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from demo.standins.checksum import DeviceEntry, checksum
from demo.standins.holdings import DeviceHolding, Key

NAME = "kubelet_internal_checkpoint"


class CorruptCheckpoint(Exception):
    """The file is invalid."""


def write(directory: Path, held: Iterable[tuple[Key, DeviceHolding]], registered: Mapping[str, list[str]]) -> None:
    """Replace the file atomically."""
    entries = [_entry(key, holding) for key, holding in held] or None
    content = {
        "Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered},
        "Checksum": checksum(entries, registered),
    }
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=directory)  # mode 0600
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file, separators=(",", ":"), ensure_ascii=False)
    Path(temporary).replace(directory / NAME)


def read(directory: Path) -> tuple[dict[Key, DeviceHolding], list[str]]:
    """The devices of each container, and the names of the registered resources."""
    try:
        text = (directory / NAME).read_text()
    except FileNotFoundError:
        return {}, []
    try:
        content = json.loads(text)
        data = content["Data"]
        entries: list[DeviceEntry] = data["PodDeviceEntries"] or []
        held = {(e["PodUID"], e["ContainerName"], e["ResourceName"]): _holding(e) for e in entries}
        expected = checksum(data["PodDeviceEntries"], data["RegisteredDevices"])
        _demand(content["Checksum"], expected)
        return held, list(data["RegisteredDevices"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(f"cannot read {directory / NAME}: {error!r}") from error


def _demand(checksum: Any, expected: int) -> None:  # noqa: ANN401 - from a file that may hold anything
    if checksum != expected:
        raise CorruptCheckpoint(f"the checkpoint has checksum {checksum}, its data has {expected}")


def _entry(key: Key, holding: DeviceHolding) -> DeviceEntry:
    pod, container, resource = key
    nodes = {str(node): list(holding.by_node[node]) for node in sorted(holding.by_node)}
    return DeviceEntry(
        PodUID=pod,
        ContainerName=container,
        ResourceName=resource,
        DeviceIDs=nodes,
        AllocResp=base64.b64encode(holding.response).decode(),
    )


def _holding(entry: DeviceEntry) -> DeviceHolding:
    nodes = {int(node): tuple(ids) for node, ids in entry["DeviceIDs"].items()}
    return DeviceHolding(nodes, base64.b64decode(entry["AllocResp"], validate=True))
