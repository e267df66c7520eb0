"""Which devices one reset takes down, and whether a reset is under way."""

from __future__ import annotations

from collections.abc import Iterable

from scrubber.core.model import Step
from scrubber.core.record import Record


def siblings(record: Record, records: Iterable[Record]) -> list[Record]:
    """The other devices that a reset of this device takes down.

    A device that is gone counts, because it may return at any moment.
    """
    domain = record.device.reset_domain
    if domain is None:
        return []
    others = (other for other in records if other.device.uuid != record.device.uuid)
    return [other for other in others if other.device.reset_domain == domain]


def resetting(record: Record, records: Iterable[Record]) -> bool:
    """Whether a sibling is being reset, or is about to be."""
    jobs = (sibling.scrubs.job for sibling in siblings(record, records))
    return any(job is not None and job.begun is Step.RESET for job in jobs)
