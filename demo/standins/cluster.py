"""The scheduler and the claim controller, as small as they can be, and the kubelet's requests for claims.

Copies the order of the allocator (slices by name, devices in the order of their slice, first fit) and
``pkg/controller/resourceclaim/controller.go``: a claim is free as soon as its last pod is gone or has ended. The
controller never asks the kubelet, so a pod that is deleted by force frees its claims while its containers run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from demo.standins.api_server import CLAIMS, SLICES, ApiServer, Object
from demo.standins.http_api import Answer, Request
from demo.standins.pods import Pod

GROUP = "/apis/resource.k8s.io/v1"
KUBELET = "kubelet"  # the agent of the kubelet's requests
_HOLDS_BACK = ("NoSchedule", "NoExecute")


class Cluster:
    """What the control plane does for pods with claims on one node."""

    def __init__(self, server: ApiServer, node: str) -> None:
        """``node`` exists in the API server."""
        self.server = server
        self.node = node

    # -- for the test

    def claim(self, name: str, *, driver: str, count: int = 1, admin: bool = False, of: Pod | None = None) -> Object:
        """Create a claim for devices of one driver. ``of``: the pod for which a template made the claim."""
        return self.claim_requests(name, {"devices": (driver, count, admin)}, of=of)

    def claim_requests(self, name: str, requests: Mapping[str, tuple[str, int, bool]], of: Pod | None = None) -> Object:
        """Create a claim with several requests: driver, count and admin access by name.

        A driver has one device class, with the driver's name.
        """
        owner = {"apiVersion": "v1", "kind": "Pod", "controller": True}
        owners = [{**owner, "name": of.name, "uid": of.uid}] if of is not None else []
        specs = [
            {"name": request, "exactly": {"deviceClassName": driver, "count": count, "adminAccess": admin}}
            for request, (driver, count, admin) in requests.items()
        ]
        metadata = {"name": name, "namespace": "default", "ownerReferences": owners}
        return self.server.create(CLAIMS, {"metadata": metadata, "spec": {"devices": {"requests": specs}}})

    def place(self, pod: Pod) -> str:
        """Allocate the claims of a pod, and reserve them for it. Returns why that is impossible; then does nothing."""
        claims = {name: self.server.find(CLAIMS, name, pod.namespace) for name in pod.claims}
        taken = set(self._taken())
        for name, claim in claims.items():
            if claim is None:
                return f'resourceclaim "{name}" not found'
            if claim["metadata"].get("deletionTimestamp"):
                return f'resourceclaim "{name}" is being deleted'
            status = claim.setdefault("status", {})
            if not status.get("allocation"):
                results = self._allocation(claim, taken)
                if results is None:
                    return "cannot allocate all claims"
                status["allocation"] = {"devices": {"results": results}}
            reserved = status.setdefault("reservedFor", [])
            if pod.uid not in [entry["uid"] for entry in reserved]:
                reserved.append({"resource": "pods", "name": pod.name, "uid": pod.uid})
        for claim in filter(None, claims.values()):
            self.server.put(CLAIMS, claim)
        return ""

    def devices(self, claim: str, namespace: str = "default") -> list[str]:
        """The names of the devices that a claim has."""
        stored = self.server.find(CLAIMS, claim, namespace) or {}
        allocation = (stored.get("status") or {}).get("allocation") or {"devices": {"results": ()}}
        return [result["device"] for result in allocation["devices"]["results"]]

    def offered(self, driver: str) -> dict[str, bool]:
        """The devices in the slices of a driver, in the order of the scheduler, and whether it may choose them."""
        return {device["name"]: offered for device, offered in self.listed(driver)}

    def listed(self, driver: str) -> Iterator[tuple[Object, bool]]:
        """The same, with the devices as the slices describe them."""
        return ((device, _is_offered(device)) for found, device in self._listed() if found["driver"] == driver)

    # -- for the kubelet

    def read_claim(self, namespace: str, name: str) -> Answer:
        """GET of a claim; ServerAway without an answer."""
        path = f"{GROUP}/namespaces/{namespace}/{CLAIMS}/{name}"
        return self.server.ask(Request("GET", path, agent=KUBELET))

    def delete_slices(self, driver: str) -> Answer:
        """DELETE of the slices of the node, of one driver or (empty) of all; ServerAway without an answer."""
        selector = f"spec.nodeName={self.node}" + (f",spec.driver={driver}" if driver else "")
        query = {"fieldSelector": selector}
        return self.server.ask(Request("DELETE", f"{GROUP}/{SLICES}", query=query, agent=KUBELET))

    def pod_ended(self, pod: Pod) -> None:
        """The pod is gone, or in a terminal phase: free the claims that no other pod has."""
        for claim in self.server.objects(CLAIMS):
            status, name = claim.get("status") or {}, claim["metadata"]["name"]
            before = status.get("reservedFor") or []
            left = [entry for entry in before if entry["uid"] != pod.uid]
            if len(left) < len(before):
                status["reservedFor"] = left
                if not left:
                    status.pop("allocation", None)
                self.server.put(CLAIMS, claim)
            owned = any(owner["uid"] == pod.uid for owner in claim["metadata"].get("ownerReferences") or ())
            if not left and (owned or claim["metadata"].get("deletionTimestamp")):
                self.server.delete(CLAIMS, name, claim["metadata"]["namespace"])

    # -- internal

    def _listed(self) -> Iterator[tuple[Object, Object]]:
        """Each device, with the specification of its slice."""
        for resource_slice in self.server.objects(SLICES):
            for device in resource_slice["spec"].get("devices") or ():
                yield resource_slice["spec"], device

    def _taken(self) -> Iterator[tuple[str, str, str]]:
        """Devices of claims. Admin access takes none."""
        for claim in self.server.objects(CLAIMS):
            allocation = (claim.get("status") or {}).get("allocation") or {"devices": {"results": ()}}
            for result in allocation["devices"]["results"]:
                if not result.get("adminAccess"):
                    yield result["driver"], result["pool"], result["device"]

    def _allocation(self, claim: Object, taken: set[tuple[str, str, str]]) -> list[Object] | None:
        """The devices for a claim, which are taken from now on; None if there are too few."""
        results: list[Object] = []
        for request in claim["spec"]["devices"]["requests"]:
            wanted: dict[str, Any] = request["exactly"]
            admin, left = bool(wanted.get("adminAccess")), wanted.get("count", 1)
            for its, device in self._listed():
                key = its["driver"], its["pool"]["name"], device["name"]
                fits = its["driver"] == wanted["deviceClassName"] and _is_offered(device)
                if not left or not fits or (key in taken and not admin):
                    continue
                left -= 1
                if not admin:
                    taken.add(key)
                result = {"request": request["name"], "driver": key[0], "pool": key[1], "device": key[2]}
                results.append({**result, **({"adminAccess": True} if admin else {})})
            if left:
                return None
        return results


def _is_offered(device: Mapping[str, Any]) -> bool:
    return not any(taint["effect"] in _HOLDS_BACK for taint in device.get("taints") or ())
