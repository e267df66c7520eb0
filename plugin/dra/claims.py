"""What the cluster has allocated to a ResourceClaim. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for result in (allocation.get("devices") or {}).get("results") or ():
        if result["driver"] == driver:
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
