"""Which device a name means, and how a command names a device."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ground.errors import InvalidRequest, Reason
from scrubber.core.absence import is_gone
from scrubber.core.record import Record


def find(records: Mapping[str, Record], name: str) -> str:
    """The UUID of the one device with this index, UUID or unique prefix.

    Raises InvalidRequest if no device or several devices have it. An index stands for all slices of its GPU. If several
    devices have had this index, it means the device that is there now, or that was there last.
    """
    if name in records:
        return name
    if is_index(name):
        named = [record for record in records.values() if name in (record.device.name, str(record.device.index))]
        last = {record.device.name: record for record in sorted(named, key=_gone_since)}
        candidates = [record for record in named if not is_gone(record)] or list(last.values())
    else:
        begin = name.lower()
        candidates = [record for uuid, record in records.items() if uuid.lower().startswith(begin)] if name else []
    if len(candidates) == 1:
        return candidates[0].device.uuid
    if choice := sorted(f"{record.device.name} ({record.device.uuid})" for record in candidates):
        raise InvalidRequest(f"cannot find device {name}: it could be any of {', '.join(choice)}", "give its UUID")
    raise InvalidRequest(f"cannot find device {name}: no device has this name", reason=Reason.UNKNOWN_DEVICE)


def had_index(records: Mapping[str, Record], name: str, found: str) -> tuple[str, ...]:
    """A sentence about the last other device with the index by which a device was found; empty if there is none."""
    index = records[found].device.name
    others = [record for uuid, record in records.items() if uuid != found and record.device.name == index]
    if not others or not is_index(name):
        return ()
    other = max(others, key=_gone_since).device.uuid
    return (f"another GPU had the index {index} at another time: `autoclave explain {other}` is about that one",)


def argument(record: Record) -> str:
    """The name of the device in a command. The index of a device that is gone may now belong to another device."""
    return record.device.uuid if is_gone(record) else record.device.name


def is_index(name: str) -> bool:
    """Whether this is an index, perhaps of a slice, and no UUID."""
    return name.replace(":", "", 1).isdecimal()


def _gone_since(record: Record) -> float:
    quarantine = record.health.quarantine
    return quarantine.since.wall if quarantine is not None and is_gone(record) else math.inf
