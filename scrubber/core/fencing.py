"""To whom the fence opens a device. It follows from the record, in this direction only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from scrubber.core.model import State, is_pod
from scrubber.core.record import Record


class OpenTo(Enum):
    """Who may open a device beside the service."""

    SERVICE = "the service alone"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Pod:
    """The containers of this pod may."""

    uid: str


def open_to(record: Record) -> OpenTo | Pod:
    """Who may open the device. Everybody, if somebody may whose control group is not known."""
    match record.state:
        case State.UNKNOWN | State.DIRTY | State.SCRUBBING | State.CLEAN | State.QUARANTINED:
            return OpenTo.SERVICE
        case State.GRANTED:
            grant = record.tenancy.grant
            announced = grant is not None and grant.announced and not grant.until_release
            return OpenTo.SERVICE if announced else OpenTo.ALL
        case State.IN_USE:
            owner = record.tenancy.owner
            if owner is None or owner.container is None or not is_pod(owner.container):
                return OpenTo.ALL
            alone = not owner.crowded and not record.tenancy.until_release
            return Pod(owner.container) if alone else OpenTo.ALL
