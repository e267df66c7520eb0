"""To whom the fence opens a device. It follows from the record, in this direction only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from policies.values import FenceMode
from scrubber.core.model import State
from scrubber.core.record import Record


class OpenTo(Enum):
    """Who may open a device, apart from the service."""

    SERVICE = "the service alone"
    ALL = "all"


class KeptOff(Enum):
    """Who is kept off a device that was not given to them. Everybody else is counted."""

    NONE = "nobody"
    PODS = "pods"
    ALL = "all"

    @property
    def mode(self) -> FenceMode:
        """The mode of the policy that keeps these off."""
        return {KeptOff.NONE: FenceMode.WATCH, KeptOff.PODS: FenceMode.HOLD, KeptOff.ALL: FenceMode.REFUSE}[self]


@dataclass(frozen=True, slots=True)
class Container:
    """The pod or container with this name may."""

    name: str

    @property
    def names(self) -> frozenset[str]:
        """As those of ``Pods``."""
        return frozenset({self.name})


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods with these UIDs may: those that a claim is reserved for."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of this control group may."""

    id: int


MayOpen: TypeAlias = OpenTo | Container | Pods | Group


def open_to(record: Record) -> MayOpen:
    """Who may open the device.

    If the control group of one of them is not known, everybody may. Another pod that was seen on the device, such as an
    exempt one, changes nothing: it was not given the device.
    """
    match record.state:
        case State.UNKNOWN | State.DIRTY | State.SCRUBBING | State.CLEAN | State.QUARANTINED:
            return OpenTo.SERVICE
        case State.GRANTED:
            grant = record.tenancy.grant
            announced = grant is not None and grant.announced and not grant.until_release
            return OpenTo.SERVICE if announced else _tenant(record)
        case State.IN_USE:
            owner = record.tenancy.owner
            if owner is None or owner.container is None:
                return _tenant(record)
            return _tenant(record) if record.tenancy.until_release else Container(owner.container)


def _tenant(record: Record) -> MayOpen:
    """The control group or the pods that were named when the device was acquired; everybody if none were named."""
    group, pods = record.tenancy.group, record.tenancy.claim_pods
    if group:
        return Group(group)
    return OpenTo.ALL if pods is None else Pods(frozenset(pods))
