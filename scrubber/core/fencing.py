"""To whom the fence opens a device. It follows from the record, in this direction only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from scrubber.core.model import State
from scrubber.core.record import Record


class OpenTo(Enum):
    """Who may open a device beside the service."""

    SERVICE = "the service alone"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Container:
    """The pod or container with this name may."""

    name: str


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of this control group may."""

    id: int


def open_to(record: Record) -> OpenTo | Container | Group:
    """Who may open the device. Everybody, if somebody may whose control group is not known."""
    tenant = Group(record.tenancy.group) if record.tenancy.group else OpenTo.ALL
    match record.state:
        case State.UNKNOWN | State.DIRTY | State.SCRUBBING | State.CLEAN | State.QUARANTINED:
            return OpenTo.SERVICE
        case State.GRANTED:
            grant = record.tenancy.grant
            announced = grant is not None and grant.announced and not grant.until_release
            return OpenTo.SERVICE if announced else tenant
        case State.IN_USE:
            owner = record.tenancy.owner
            if owner is None or owner.container is None:
                return tenant
            alone = not owner.crowded and not record.tenancy.until_release
            return Container(owner.container) if alone else tenant
