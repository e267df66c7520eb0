"""Who the kubelet says holds a device: its device manager's checkpoint, read only.

The file is the kubelet's own affair. Its layout has been the same from 1.20 to 1.36 (before, ``DeviceIDs`` was a plain
list, read here as well); anything else is no answer. It names init containers and pod UIDs, which no interface of the
kubelet does. An entry does not prove that its pod lives: those of ended pods stay until the next write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NAME = "kubelet_internal_checkpoint"
LARGEST = 64 * 2**20  # bytes: a kubelet's own is some kilobytes a pod


class CheckpointError(Exception):
    """The checkpoint cannot be read, or is not one: the message is for operators."""


def owners(directory: Path) -> dict[str, frozenset[str]]:
    """The pod UIDs that each device is written down for, under whatever resource."""
    file = directory / NAME
    try:
        with file.open("rb") as stream:  # opened anew each time: the kubelet replaces it by renaming
            text = stream.read(LARGEST + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}") from error
    if len(text) > LARGEST:
        raise CheckpointError(f"cannot believe {file}: it is larger than {LARGEST} bytes")
    found: dict[str, frozenset[str]] = {}
    try:
        for pod, device in _entries(json.loads(text)):
            found[device] = found.get(device, frozenset()) | {pod}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"cannot believe {file}: it is not laid out as a checkpoint ({error!r})") from error
    return found


def _entries(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pod UID and device id of every entry. ``null`` is how Go writes an empty list or map."""
    for entry in document["Data"]["PodDeviceEntries"] or ():
        pod = entry["PodUID"]
        if not isinstance(pod, str) or not pod:
            raise ValueError("an entry without a pod UID")
        for device in _devices(entry["DeviceIDs"]):
            if not isinstance(device, str):
                raise TypeError("a device id that is no text")
            yield pod, device


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
