"""The calls to the API server, each with a time limit and classified failures.

The only module that knows the client library. The library is an optional dependency, and costs more memory and time
than the rest of the plugin's start. So ``starting`` imports this module by name, and only if there are credentials.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Any

import httpx2
import msgspec
from lightkube import AsyncClient, KubeConfig
from lightkube.models.core_v1 import Node as NodeModel
from lightkube.models.core_v1 import NodeCondition
from lightkube.resources import core_v1
from lightkube.types import PatchType

from plugin.cluster import api_objects, base
from plugin.cluster.base import Failure, FailureKind
from plugin.cluster.credentials import Credentials, File, InCluster
from plugin.cluster.node_report import Condition, ConditionContent, ConditionStatus
from plugin.cluster.outbox import PendingEvent

_KNOWN = {status.value for status in ConditionStatus}
_MOST_QUOTED = 300  # characters of an answer of the API server
_STALE = frozenset({HTTPStatus.CONFLICT})
_STALE_PATCH = _STALE | {HTTPStatus.UNPROCESSABLE_ENTITY}  # the status for a JSON patch whose test fails


def connect(credentials: Credentials, node: str, within: float) -> ApiServer:
    """A client that has sent nothing yet. ``within``: the time limit of a call, in seconds."""
    try:
        client = AsyncClient(_config(credentials), namespace=api_objects.NAMESPACE, timeout=httpx2.Timeout(within))
    except Exception as error:  # the library fails in many ways on a broken file
        raise base.Unusable(f"cannot use the credentials: {_one_line(error)}") from error
    return ApiServer(client, node, within)


def _config(credentials: Credentials) -> KubeConfig:
    match credentials:
        case InCluster(directory):
            return KubeConfig.from_service_account(directory)
        case File(path):
            return KubeConfig.from_file(path)


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
        """Create an Event."""
        created = msgspec.convert(api_objects.event(event, self._node, uid), core_v1.Event)
        async with self._call("create", "events"):
            await self._client.create(created)

    async def repeat_event(self, event: PendingEvent) -> None:
        """Increase the count of an Event."""
        async with self._call("patch", "events"):
            await self._client.patch(core_v1.Event, event.name, api_objects.repeated(event), patch_type=PatchType.MERGE)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _patch_taints(self, patch: list[dict[str, Any]]) -> None:
        async with self._call("patch", "nodes", _STALE_PATCH):
            await self._client.patch(core_v1.Node, self._node, patch, patch_type=PatchType.JSON)

    @asynccontextmanager
    async def _call(self, verb: str, what: str, stale: Collection[int] = _STALE) -> AsyncIterator[None]:
        """Limit the time of a whole call, with DNS, TLS and the answer, and raise a Failure for each error."""
        try:
            async with asyncio.timeout(self._within):
                yield
        except (TimeoutError, httpx2.TimeoutException):
            raise Failure(FailureKind.AWAY, f"the API server did not answer within {self._within:g} s") from None
        except httpx2.HTTPStatusError as error:
            raise _failure(error, f"{verb} {what}", stale) from None
        except (httpx2.HTTPError, OSError) as error:
            raise Failure(FailureKind.AWAY, f"cannot reach the API server: {_one_line(error)}") from None
        except Exception as error:  # the library fails in many ways on an invalid answer
            raise Failure(FailureKind.AWAY, f"the API server's answer is invalid: {_one_line(error)}") from error


def _failure(error: httpx2.HTTPStatusError, right: str, stale: Collection[int]) -> Failure:
    code, said = error.response.status_code, _one_line(error)
    match code:
        case HTTPStatus.UNAUTHORIZED:
            return Failure(FailureKind.FORBIDDEN, f"the API server does not accept the credentials: {said}")
        case HTTPStatus.FORBIDDEN:
            return Failure(FailureKind.FORBIDDEN, f"the right to {right} is missing: {said}")
        case HTTPStatus.NOT_FOUND:
            return Failure(FailureKind.MISSING, f"cannot {right}, the object does not exist: {said}")
        case HTTPStatus.TOO_MANY_REQUESTS:
            return Failure(FailureKind.BUSY, "the API server is busy", _retry_after(error))
        case HTTPStatus.UNPROCESSABLE_ENTITY if code in stale:
            why = f"another client changed the object before {right}, or an admission policy refused it: {said}"
            return Failure(FailureKind.STALE, why)
        case _ if code in stale:
            return Failure(FailureKind.STALE, f"another client changed the object before {right}: {said}")
        case _ if HTTPStatus.BAD_REQUEST <= code < HTTPStatus.INTERNAL_SERVER_ERROR:
            return Failure(FailureKind.REFUSED, f"the API server refuses to {right}: {said}")
        case _:
            return Failure(FailureKind.AWAY, f"the API server failed with status {code}", _retry_after(error))


def _retry_after(error: httpx2.HTTPStatusError) -> float | None:
    """In seconds; the API server never sends a date."""
    seconds = error.response.headers.get("Retry-After", "")
    return float(seconds) if seconds.isdecimal() else None


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


def _one_line(error: Exception) -> str:
    said = " ".join(f"{error}".split()) or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in said)[:_MOST_QUOTED]
