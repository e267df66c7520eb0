"""Who the kubelet says holds a device: its device manager's checkpoint, read only.

The file is the kubelet's own affair. Its layout has been the same from 1.20 to 1.36 (before, ``DeviceIDs`` was a plain
list, read here as well); anything else is no answer. It names init containers and pod UIDs, which no interface of the
kubelet does. An entry does not prove that its pod lives: those of ended pods stay until the next write.

The checksum is left alone: it is made of how Go prints its own types, which changes with them. A kubelet replaces the
file by renaming, so that nobody meets half of one; should somebody all the same, it is no answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

NAME = "kubelet_internal_checkpoint"
LARGEST = 64 * 2**20  # bytes: a kubelet's own is some kilobytes a pod
_REPLICA = re.compile(r"(?<=.)::[0-9]+\Z")  # how plugins that share a device between pods number its parts


class CheckpointError(Exception):
    """The checkpoint cannot be read, or is not one: the message is for operators."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """A container, and a device that it was given."""

    device: str  # for a part of a shared one, the whole
    pod: str  # its UID
    container: str  # empty where the kubelet does not say


def owners(directory: Path) -> dict[str, frozenset[str]]:
    """The pod UIDs that each device is written down for, under whatever resource."""
    found: dict[str, frozenset[str]] = {}
    for entry in entries(directory):
        found[entry.device] = found.get(entry.device, frozenset()) | {entry.pod}
    return found


def entries(directory: Path) -> tuple[CheckpointEntry, ...]:
    """Everything that is written down, each once; raises CheckpointError."""
    file = directory / NAME
    try:
        with file.open("rb") as stream:  # opened anew each time: the kubelet replaces it by renaming
            text = stream.read(LARGEST + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}") from error
    if len(text) > LARGEST:
        raise CheckpointError(f"cannot believe {file}: it is larger than {LARGEST} bytes")
    try:
        return parse(text)
    except CheckpointError as error:
        raise CheckpointError(f"cannot believe {file}: {error}") from error


@lru_cache(1)  # asked for device after device, round after round; by what it says, so that no change is missed
def parse(text: bytes) -> tuple[CheckpointEntry, ...]:
    """What a checkpoint says; raises CheckpointError."""
    try:
        return tuple(dict.fromkeys(_entries(json.loads(text))))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"it is not laid out as a checkpoint ({error!r})") from error


def _entries(document: Mapping[str, Any]) -> Iterator[CheckpointEntry]:
    """One for every device of every container. ``null`` is how Go writes an empty list or map."""
    for entry in document["Data"]["PodDeviceEntries"] or ():
        pod, container = entry["PodUID"], entry.get("ContainerName", "")
        if not isinstance(pod, str) or not pod:
            raise ValueError("an entry without a pod UID")
        if not isinstance(container, str):
            raise TypeError("a container's name that is no text")
        for device in _devices(entry["DeviceIDs"]):
            if not isinstance(device, str):
                raise TypeError("a device id that is no text")
            yield CheckpointEntry(_REPLICA.sub("", device), pod, container)


def _devices(ids: object) -> Iterator[object]:
    if isinstance(ids, list):
        yield from ids
        return
    if ids is None:
        return
    if not isinstance(ids, dict):
        raise TypeError("device ids that are neither a list nor a map")
    for some in ids.values():  # by NUMA node
        if some is not None and not isinstance(some, list):
            raise TypeError("device ids of a NUMA node that are no list")
        yield from some or ()
