"""Finds the device that a name means, tells if it is missing or replaced, and which devices one reset takes down."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ground.errors import InvalidRequest, Reason
from scrubber.core.ailment_traits import AILMENTS
from scrubber.core.model import AilmentKind, Step, Vitals
from scrubber.core.record import Record


def find(records: Mapping[str, Record], name: str) -> str:
    """The UUID of the one device with this index, UUID or unique prefix; InvalidRequest when none or several have it.

    An index stands for all slices of its GPU. Of several devices that had the same index, it means the one that is
    there, or was there last.
    """
    if name in records:
        return name
    if _is_index(name):
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
    if not others or not _is_index(name):
        return ()
    other = max(others, key=_gone_since).device.uuid
    return (f"another GPU had the index {index} at another time: `autoclave explain {other}` is about that one",)


def argument(record: Record) -> str:
    """What names the device in a command. The index of a device that is gone may be that of another one."""
    return record.device.uuid if is_gone(record) else record.device.name


def _is_index(name: str) -> bool:
    return name.replace(":", "", 1).isdecimal()


def _gone_since(record: Record) -> float:
    quarantine = record.health.quarantine
    return quarantine.since.wall if quarantine is not None and is_gone(record) else math.inf


def is_gone(record: Record) -> bool:
    """Whether the device is quarantined because it is missing. It may have returned since."""
    quarantine = record.health.quarantine
    return quarantine is not None and AILMENTS[quarantine.ailment.kind].gone


def taken_away(record: Record) -> bool:
    """Whether the device was taken away on purpose. Its vitals say whether it is back.

    Exception: a GPU that waits for a person does not count as taken away by a new MIG layout. The person must still
    decide about it.
    """
    quarantine = record.health.quarantine
    if quarantine is None or not AILMENTS[quarantine.ailment.kind].taken_away:
        return False
    waits = quarantine.next_probe is None and record.device.parent is None
    return quarantine.ailment.kind is AilmentKind.REPLACED or not waits


def successor(record: Record, records: Iterable[Record]) -> str | None:
    """The GPU that is now at the PCI address of this quarantined GPU, or None. A slice has no address of its own."""
    address, quarantine = record.device.pci_address, record.health.quarantine
    if quarantine is None or address is None or record.device.parent is not None:
        return None
    there = (it for it in records if it.device.pci_address == address and it.device.parent is None)
    return next((it.device.uuid for it in there if it.health.quarantine is None), None)


def slice_vitals(vitals: Vitals, parent: Vitals | None) -> Vitals:
    """The vitals of a slice. If it is lost while its GPU is there and answers, the GPU has another MIG layout."""
    if not vitals.lost or parent is None or parent.unresponsive or parent.partial or parent.reset_required:
        return vitals
    return replace(vitals, relaid=parent.relaid or not parent.lost)


def siblings(record: Record, records: Iterable[Record]) -> list[Record]:
    """The other devices that a reset of this one takes down. One that is gone counts: it may return at any moment."""
    domain = record.device.reset_domain
    if domain is None:
        return []
    return [it for it in records if it.device.reset_domain == domain and it.device.uuid != record.device.uuid]


def resetting(record: Record, records: Iterable[Record]) -> bool:
    """Whether a sibling is being reset, or is about to be."""
    return any(it.scrubs.job is not None and it.scrubs.job.begun is Step.RESET for it in siblings(record, records))
