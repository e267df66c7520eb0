"""What the cluster has allocated to a ResourceClaim, and to which pods. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plugin.devices import Device


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device of a claim."""

    request: str
    pool: str
    name: str
    admin: bool  # admin access: for observation of a device that may belong to another claim


@dataclass(frozen=True, slots=True)
class NamedDevice:
    """A device under its name in the cluster."""

    pool: str
    name: str
    device: Device


def allocated(claim: Mapping[str, Any], driver: str) -> Iterator[AllocatedDevice]:
    """The devices of this driver that a ResourceClaim has, in the order of the allocation."""
    for result in _results(claim, driver):
        yield AllocatedDevice(
            # One of several alternatives is named "request/alternative"; the kubelet knows the request.
            request=result["request"].partition("/")[0],
            pool=result["pool"],
            name=result["device"],
            admin=bool(result.get("adminAccess")),
        )


def uid(claim: Mapping[str, Any]) -> str:
    """The UID of a ResourceClaim: a claim of the same name may be another one."""
    return str(claim["metadata"]["uid"])


def place(claim: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name of a ResourceClaim."""
    return str(claim["metadata"]["namespace"]), str(claim["metadata"]["name"])


def pods(claim: Mapping[str, Any]) -> tuple[str, ...]:
    """The UIDs of the pods that a ResourceClaim is reserved for."""
    return tuple(sorted(str(consumer["uid"]) for consumer in _consumers(claim) if consumer["resource"] == "pods"))


def refusal(claim: Mapping[str, Any], driver: str) -> str:
    """Why the fence could not keep others off the devices of a claim, or not let its pods in, in words for tenants.

    Empty if it can do both.
    """
    this = f"the claim {'/'.join(place(claim))}"
    for result in _results(claim, driver):
        if result.get("shareID"):
            return f"{this} shares {result['device']} with other claims, and claims are not kept apart there"
    for consumer in _consumers(claim):
        if consumer["resource"] != "pods":
            return f"{this} is reserved for {consumer['resource']}/{consumer['name']}, whose pods are not known"
    return "" if pods(claim) else f"{this} is reserved for no pod"


def _consumers(claim: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (claim.get("status") or {}).get("reservedFor") or ()


def _results(claim: Mapping[str, Any], driver: str) -> Iterator[Mapping[str, Any]]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (each for each in (allocation.get("devices") or {}).get("results") or () if each["driver"] == driver)
