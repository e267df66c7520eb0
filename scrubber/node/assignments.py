"""Read which pods own a device, from the checkpoint of the kubelet's device manager.

The file is internal to the kubelet. Its format is the same from 1.20 to 1.37; any other format is an error. It names
init containers and pod UIDs, which no API of the kubelet does. An entry does not prove that its pod runs: entries of
ended pods stay until the next write.

The checksum is not verified: it depends on how Go prints the kubelet's types. The kubelet replaces the file by renaming
it, so a reader never sees half a file; a file that cannot be parsed is an error.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from scrubber.core.model import KubeletAssignment

NAME = "kubelet_internal_checkpoint"
LARGEST = 64 * 2**20  # bytes: a real file has some kilobytes a pod
_REPLICA = re.compile(r"(?<=.)::[0-9]+\Z")  # suffix of the parts of a device that a plugin shares between pods


class AssignmentsError(Exception):
    """The checkpoint cannot be read or has another format. The message is for operators."""


@dataclass(frozen=True, slots=True)
class AssignmentEntry:
    """A container and a device that the kubelet allocated to it."""

    device: str  # the whole device if the kubelet allocated a part
    pod: str  # UID
    container: str  # empty if the kubelet does not name it


def by_device(directory: Path) -> dict[str, KubeletAssignment]:
    """What the file says about each device, for all resources."""
    assigned: dict[str, KubeletAssignment] = {}
    all_entries, written = _read(directory)
    for entry in all_entries:
        earlier = assigned.get(entry.device, KubeletAssignment())
        assigned[entry.device] = KubeletAssignment(earlier.pods | {entry.pod}, earlier.containers + 1, written)
    return assigned


def entries(directory: Path) -> tuple[AssignmentEntry, ...]:
    """All entries without duplicates; raises AssignmentsError."""
    return _read(directory)[0]


def _read(directory: Path) -> tuple[tuple[AssignmentEntry, ...], float]:
    """All entries, and when the file was written."""
    file = directory / NAME
    try:
        with file.open("rb") as stream:  # opened anew each time: the kubelet replaces it by renaming
            text, written = stream.read(LARGEST + 1), os.fstat(stream.fileno()).st_mtime
    except OSError as error:
        raise AssignmentsError(f"cannot read {file}: {error.strerror}") from error
    if len(text) > LARGEST:
        raise AssignmentsError(f"cannot use {file}: it is larger than {LARGEST} bytes")
    try:
        return parse(text), written
    except AssignmentsError as error:
        raise AssignmentsError(f"cannot use {file}: {error}") from error


@lru_cache(1)  # called for each device in each round; the key is the content, so no change is missed
def parse(text: bytes) -> tuple[AssignmentEntry, ...]:
    """The entries of a checkpoint; raises AssignmentsError."""
    try:
        return tuple(dict.fromkeys(_entries(json.loads(text))))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AssignmentsError(f"it does not have the format of a checkpoint ({error!r})") from error


def _entries(document: Mapping[str, Any]) -> Iterator[AssignmentEntry]:
    """Yield an entry for each device of each container. Go writes an empty list or map as ``null``."""
    for entry in document["Data"]["PodDeviceEntries"] or ():
        pod, container = entry["PodUID"], entry.get("ContainerName", "")
        if not isinstance(pod, str) or not pod:
            raise ValueError("an entry without a pod UID")
        if not isinstance(container, str):
            raise TypeError("a container name that is not text")
        for device in _devices(entry["DeviceIDs"]):
            if not isinstance(device, str):
                raise TypeError("a device id that is not text")
            yield AssignmentEntry(_REPLICA.sub("", device), pod, container)


def _devices(ids: object) -> Iterator[object]:
    if not isinstance(ids, dict | None):
        raise TypeError("device ids that are not a map")
    for some in (ids or {}).values():  # by NUMA node
        if some is not None and not isinstance(some, list):
            raise TypeError("device ids of a NUMA node that are not a list")
        yield from some or ()
