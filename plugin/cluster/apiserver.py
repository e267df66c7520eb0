"""The calls to the API server for the reports about one node."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from http import HTTPStatus
from typing import Any

import msgspec
from lightkube import ApiError, AsyncClient
from lightkube.models.core_v1 import Node as NodeModel
from lightkube.models.core_v1 import NodeCondition
from lightkube.resources import core_v1
from lightkube.types import PatchType

from plugin.cluster import api_objects, base, calls
from plugin.cluster.credentials import Credentials
from plugin.cluster.node_report import Condition, ConditionContent, ConditionStatus, PendingEvent

_KNOWN = {status.value for status in ConditionStatus}
_STALE_PATCH = calls.STALE | {HTTPStatus.UNPROCESSABLE_ENTITY}  # the status for a JSON patch whose test fails


def connect(credentials: Credentials, node: str, within: float) -> ApiServer:
    """A client that has sent nothing yet. ``within``: the time limit of a call, in seconds."""
    return ApiServer(calls.connect(credentials, api_objects.NAMESPACE, within), node, within)


class ApiServer:
    """The API server, for one node."""

    def __init__(self, client: AsyncClient, node: str, within: float) -> None:
        self._client = client
        self._node = node
        self._within = within

    async def read(self) -> base.ClusterNode:
        """The Node as it is now."""
        async with self._call("get", "nodes"):
            return _node(await self._client.get(core_v1.Node, self._node))

    async def put_condition(self, condition: Condition) -> base.ClusterNode:
        """Set our condition."""
        async with self._call("patch", "nodes/status"):
            return _node(await self._client.patch(core_v1.NodeStatus, self._node, api_objects.condition(condition)))

    async def put_taint(self, node: base.ClusterNode) -> None:
        """Add our taint, unless the Node has changed since it was read."""
        await self._patch_taints(api_objects.add_taint(node.version, others=node.taints > 0))

    async def drop_taint(self, node: base.ClusterNode) -> None:
        """Remove our taint, unless the Node has changed since it was read."""
        if node.taint is not None:
            await self._patch_taints(api_objects.remove_taint(node.version, node.taint))

    async def create_event(self, event: PendingEvent, uid: str) -> None:
        """Create an Event, unless it exists because the answer to an earlier call was lost."""
        created = msgspec.convert(api_objects.event(event, self._node, uid), core_v1.Event)
        async with self._call("create", "events"):
            try:
                await self._client.create(created)
            except ApiError as error:
                if error.status.reason != "AlreadyExists":
                    raise

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _patch_taints(self, patch: list[dict[str, Any]]) -> None:
        async with self._call("patch", "nodes", _STALE_PATCH):
            await self._client.patch(core_v1.Node, self._node, patch, patch_type=PatchType.JSON)

    def _call(self, verb: str, what: str, stale: Collection[int] = calls.STALE) -> AbstractAsyncContextManager[None]:
        return calls.call(verb, what, self._within, stale)


def _node(node: NodeModel) -> base.ClusterNode:
    metadata, spec, status = node.metadata, node.spec, node.status
    taints = (spec.taints if spec is not None else None) or []
    conditions = (status.conditions if status is not None else None) or []
    ours = (api_objects.TAINT, api_objects.EFFECT)
    places = (index for index, taint in enumerate(taints) if (taint.key, taint.effect) == ours)
    found = (condition for condition in conditions if condition.type == api_objects.CONDITION)
    return base.ClusterNode(
        uid=(metadata.uid if metadata is not None else None) or "",
        version=(metadata.resourceVersion if metadata is not None else None) or "",
        condition=next(map(_condition, found), None),
        taints=len(taints),
        taint=next(places, None),
    )


def _condition(found: NodeCondition) -> Condition:
    status = ConditionStatus(found.status) if found.status in _KNOWN else ConditionStatus.UNKNOWN
    content = ConditionContent(status, found.reason or "", found.message or "")
    return Condition(content, _seconds(found.lastHeartbeatTime), _seconds(found.lastTransitionTime))


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at is not None else 0.0
