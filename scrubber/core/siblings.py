"""The other devices of a reset domain: a reset of one takes all of them down."""

from __future__ import annotations

from collections.abc import Iterable

from scrubber.core.model import Record, Step


def siblings(record: Record, records: Iterable[Record]) -> list[Record]:
    """The other devices that a reset of this one takes down. One that is gone counts: it may return at any moment."""
    domain = record.device.reset_domain
    if domain is None:
        return []
    return [it for it in records if it.device.reset_domain == domain and it.device.uuid != record.device.uuid]


def resetting(record: Record, records: Iterable[Record]) -> bool:
    """Whether a sibling is being reset, or is about to be."""
    return any(it.job is not None and it.job.step is Step.RESET for it in siblings(record, records))
