"""What the cluster has allocated to a ResourceClaim, and what the claim shows of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plugin.cluster import node_report
from plugin.devices import Device
from scrub_api.device_messages import GrantedDevice


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


def scrubbed(driver: str) -> str:
    """The type of the condition that says whether a device was scrubbed."""
    return f"{driver}/scrubbed"


def device_status(driver: str, device: AllocatedDevice, granted: GrantedDevice, written: float) -> dict[str, Any]:
    """The entry of one device in the status of its claim. ``written``: the time, in seconds since 1970."""
    proven, proof = bool(granted.receipt), granted.proof
    condition = {
        "status": "True" if proven else "False",
        "reason": "Proven" if proven else "NoProof",
        "message": f"receipt {granted.receipt}" if proven else "the policy of the node demands no proof",
        "lastTransitionTime": node_report.api_time(proof.finished if proof is not None else written),
    }
    ready = condition | {"status": "True", "reason": "Prepared", "lastTransitionTime": node_report.api_time(written)}
    entry: dict[str, Any] = {
        "driver": driver,
        "pool": device.pool,
        "device": device.name,
        "conditions": [{"type": "Ready", **ready}, {"type": scrubbed(driver), **condition}],
    }
    if proven:
        data: dict[str, Any] = {"receipt": granted.receipt}
        if proof is not None:
            data["path"] = proof.path
            data["scrubbed"] = node_report.api_time(proof.finished)
            data["coveredBytes"] = proof.covered_bytes
            data["allocatableBytes"] = proof.allocatable_bytes
            data["policy"] = proof.policy
            if proof.envelope:
                data["envelope"], data["handover"] = proof.envelope, proof.handover
        entry["data"] = data
    return entry


def with_status(claim: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The object that sets these entries, if this version of this claim is still the present one."""
    named = ("name", "namespace", "uid", "resourceVersion")
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {name: claim["metadata"][name] for name in named},
        "status": {"devices": list(entries)},
    }


def has_status(claim: Mapping[str, Any], driver: str) -> bool:
    """Whether the status of a claim has an entry of this driver."""
    return any(entry["driver"] == driver for entry in (claim.get("status") or {}).get("devices") or ())
