"""Which devices one reset takes down, and whether one is under way."""

from __future__ import annotations

from collections.abc import Iterable

from scrubber.core.model import Step
from scrubber.core.record import Record


def siblings(record: Record, records: Iterable[Record]) -> list[Record]:
    """The other devices that a reset of this one takes down. One that is gone counts: it may return at any moment."""
    domain = record.device.reset_domain
    if domain is None:
        return []
    return [it for it in records if it.device.reset_domain == domain and it.device.uuid != record.device.uuid]


def resetting(record: Record, records: Iterable[Record]) -> bool:
    """Whether a sibling is being reset, or is about to be."""
    return any(it.scrubs.job is not None and it.scrubs.job.begun is Step.RESET for it in siblings(record, records))
