"""For whom a device is requested, and which rules apply to each kind of recipient.

A pod has no name here: the kubelet asks, and its request implies that the last owner has left. A claim and a job have a
name. They keep the device until a release, so the service refuses them a device that has an owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from scrubber.core.fencing import Pods
from scrubber.core.model import Grant, Moment
from scrubber.core.record import Tenancy


@dataclass(frozen=True, slots=True)
class ForPod:
    """The kubelet asks for a pod."""

    announced: bool = False  # the caller will ask ``start`` before a container uses the device
    until_release: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class ForClaim:
    """The DRA driver asks for a claim. Until the release, only the claim's pods may open the device."""

    owner: str  # the UID of the claim
    pods: Pods
    group: ClassVar[int] = 0
    until_release: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class ForJob:
    """A person or Slurm asks."""

    owner: str = ""  # as the caller writes it
    group: int = 0  # the only control group that may open the device meanwhile; 0: all may
    until_release: ClassVar[bool] = True


Recipient: TypeAlias = ForPod | ForClaim | ForJob


def has(recipient: Recipient, tenancy: Tenancy) -> bool:
    """Whether the device was granted to this recipient until its release: then this is a repeated request."""
    if isinstance(recipient, ForPod) or not tenancy.until_release:
        return False
    return tenancy.acquired_for(recipient.owner) and tenancy.group == recipient.group


def grant(recipient: Recipient, name: str, at: Moment, epoch: str, receipt: str | None) -> Grant:
    """The grant for this recipient, with its name, time, run of the kubelet, and the receipt that it relies on."""
    if isinstance(recipient, ForPod):
        return Grant(name, at, epoch, recipient.announced, receipt)
    owner, group = recipient.owner, recipient.group
    return Grant(name, at, epoch, announced=False, receipt=receipt, until_release=True, owner=owner, group=group)
