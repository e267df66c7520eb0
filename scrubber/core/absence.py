"""Whether a device is missing, and which GPU is in its place."""

from __future__ import annotations

from collections.abc import Iterable

from scrubber.core.ailment_traits import AILMENTS
from scrubber.core.model import AilmentKind
from scrubber.core.record import Record


def is_gone(record: Record) -> bool:
    """Whether the device is quarantined because it is missing. It may have returned since."""
    quarantine = record.health.quarantine
    return quarantine is not None and AILMENTS[quarantine.ailment.kind].gone


def taken_away(record: Record) -> bool:
    """Whether the device was taken away on purpose. Its vitals say whether it is back.

    Exception: a new MIG layout does not take away a GPU that waits for a person. The person must still decide about
    that GPU.
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
    there = (other for other in records if other.device.pci_address == address and other.device.parent is None)
    return next((other.device.uuid for other in there if other.health.quarantine is None), None)
