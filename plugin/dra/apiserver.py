"""The calls to the API server for claims and for the slice of one node."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from lightkube import AsyncClient
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.resources import core_v1

from plugin.cluster import calls
from plugin.cluster.base import Failure, FailureKind
from plugin.cluster.credentials import Credentials

GROUP, VERSION = "resource.k8s.io", "v1"
FIELD_MANAGER = "autoclave"
# Plain objects: a newer server has fields that the library does not know.
_Claim = create_namespaced_resource(GROUP, VERSION, "ResourceClaim", "resourceclaims")
_Slice = create_global_resource(GROUP, VERSION, "ResourceSlice", "resourceslices")


def connect(credentials: Credentials, node: str, within: float) -> ResourceApi:
    """A client that has sent nothing yet. ``within``: the time limit of a call, in seconds."""
    return ResourceApi(calls.connect(credentials, "default", within), node, within)


class ResourceApi:
    """Claims, and the slice of one node."""

    def __init__(self, client: AsyncClient, node: str, within: float) -> None:
        self._client: Any = client  # plain objects have no types
        self._node = node
        self._within = within

    async def claim(self, namespace: str, name: str) -> Mapping[str, Any]:
        """A ResourceClaim as it is now."""
        async with calls.call("get", "resourceclaims", self._within):
            claim = await self._client.get(_Claim, name, namespace=namespace)
            return _plain(claim)

    async def apply_claim_status(self, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set our part of the status of a claim; returns what the API server made of the claim."""
        name, namespace = wanted["metadata"]["name"], wanted["metadata"]["namespace"]
        async with calls.call("patch", "resourceclaims/status", self._within):
            status = _Claim.Status.from_dict(dict(wanted))
            applied = await self._client.apply(
                status, name, namespace=namespace, field_manager=FIELD_MANAGER, force=True
            )
            return _plain(applied)

    async def node_uid(self) -> str:
        """The UID of the node."""
        async with calls.call("get", "nodes", self._within):
            node = await self._client.get(core_v1.Node, self._node)
            return str(node.to_dict()["metadata"]["uid"])

    async def apply_slice(self, wanted: Mapping[str, Any], *, dry_run: bool = False) -> Mapping[str, Any]:
        """Create or replace a slice; returns what the API server made of it. ``dry_run`` stores nothing."""
        async with calls.call("patch", "resourceslices", self._within):
            applied = await self._client.apply(
                _Slice.from_dict(dict(wanted)), field_manager=FIELD_MANAGER, force=True, dry_run=dry_run
            )
            return _plain(applied)

    async def slices(self, name: str) -> AsyncGenerator[Mapping[str, Any] | None, None]:
        """The slice of this name now and after each change; None while there is none. Ends when the watch ends."""
        wanted = {"metadata.name": name}
        async with calls.call("list", "resourceslices", self._within):
            listed = self._client.list(_Slice, fields=wanted)
            found = [_plain(it) async for it in listed]
        yield found[0] if found else None
        watch = self._client.watch(_Slice, fields=wanted, resource_version=listed.resourceVersion)
        while True:
            try:
                async with calls.call("watch", "resourceslices", None):
                    change, it = await anext(watch)
            except StopAsyncIteration:
                return
            except Failure as failure:
                if failure.kind is FailureKind.STALE:  # normal after some hours without a change
                    return
                raise
            yield _plain(it) if change != "DELETED" else None

    async def slices_of(self, driver: str) -> list[Mapping[str, Any]]:
        """All slices of a driver for this node."""
        async with calls.call("list", "resourceslices", self._within):
            wanted = {"spec.driver": driver, "spec.nodeName": self._node}
            return [_plain(it) async for it in self._client.list(_Slice, fields=wanted)]

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


def _plain(found: Any) -> dict[str, Any]:  # noqa: ANN401 - plain objects have no types
    return dict(found.to_dict())
