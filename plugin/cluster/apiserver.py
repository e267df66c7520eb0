"""Speaks to the API server: each call in words of ours, within a bound, each failure told apart.

The one module that knows the client library. It is an extra which a node may lack, and costs more memory and time than
the rest of the plugin's start: ``starting`` loads this by name, and only where there is somebody to speak to.
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

from plugin.cluster import base, words
from plugin.cluster.base import Failure, ObjectKind
from plugin.cluster.credentials import Credentials, File, InCluster
from plugin.cluster.judging import Condition, ConditionStatus, Outlook
from plugin.cluster.outbox import PendingEvent

_KNOWN = {status.value for status in ConditionStatus}
_MOST_TOLD = 300  # letters of what the API server says
_STALE = frozenset({HTTPStatus.CONFLICT})
_STALE_PATCH = _STALE | {HTTPStatus.UNPROCESSABLE_ENTITY}  # what a test in a JSON patch comes to when it does not hold


def connect(credentials: Credentials, node: str, within: float) -> ApiServer:
    """A client; nothing is sent yet. ``within`` is how long a call may take, in seconds."""
    try:
        client = AsyncClient(_config(credentials), namespace=words.NAMESPACE, timeout=httpx2.Timeout(within))
    except Exception as error:  # whatever is wrong with a file that others write
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
        """Speak through this client."""
        self._client = client
        self._node = node
        self._within = within

    async def read(self) -> base.ClusterNode:
        """The node as it is now."""
        async with self._told("get", "nodes"):
            return _node(await self._client.get(core_v1.Node, self._node))

    async def put_condition(self, condition: Condition) -> base.ClusterNode:
        """Set our condition, whatever it was."""
        async with self._told("patch", "nodes/status"):
            return _node(await self._client.patch(core_v1.NodeStatus, self._node, words.condition(condition)))

    async def put_taint(self, node: base.ClusterNode) -> None:
        """Add our taint, if nobody changed the node since it was read."""
        await self._patch_taints(words.add_taint(node.version, others=node.taints > 0))

    async def drop_taint(self, node: base.ClusterNode) -> None:
        """Remove our taint, if nobody changed the node since it was read."""
        if node.taint is not None:
            await self._patch_taints(words.remove_taint(node.version, node.taint))

    async def post(self, letter: PendingEvent, uid: str) -> None:
        """Make an Event."""
        event = msgspec.convert(words.event(letter, self._node, uid), core_v1.Event)
        async with self._told("create", "events"):
            await self._client.create(event)

    async def bump(self, letter: PendingEvent) -> None:
        """Say of an Event that it happened again."""
        async with self._told("patch", "events"):
            await self._client.patch(core_v1.Event, letter.name, words.again(letter), patch_type=PatchType.MERGE)

    async def close(self) -> None:
        """Let go of all connections."""
        await self._client.close()

    async def _patch_taints(self, patch: list[dict[str, Any]]) -> None:
        async with self._told("patch", "nodes", _STALE_PATCH):
            await self._client.patch(core_v1.Node, self._node, patch, patch_type=PatchType.JSON)

    @asynccontextmanager
    async def _told(self, verb: str, what: str, stale: Collection[int] = _STALE) -> AsyncIterator[None]:
        """Bound a call as a whole - names, TLS, every byte of the answer - and turn each failure into ours."""
        try:
            async with asyncio.timeout(self._within):
                yield
        except (TimeoutError, httpx2.TimeoutException):
            raise Failure(ObjectKind.AWAY, f"the API server did not answer within {self._within:g} s") from None
        except httpx2.HTTPStatusError as error:
            raise _failure(error, f"{verb} {what}", stale) from None
        except (httpx2.HTTPError, OSError) as error:
            raise Failure(ObjectKind.AWAY, f"cannot reach the API server: {_one_line(error)}") from None
        except Exception as error:  # the library fails in many ways over an answer that is none
            raise Failure(ObjectKind.AWAY, f"the API server's answer makes no sense: {_one_line(error)}") from error


def _failure(error: httpx2.HTTPStatusError, right: str, stale: Collection[int]) -> Failure:
    code, said = error.response.status_code, _one_line(error)
    match code:
        case HTTPStatus.UNAUTHORIZED:
            return Failure(ObjectKind.FORBIDDEN, f"the API server does not know who we are: {said}")
        case HTTPStatus.FORBIDDEN:
            return Failure(ObjectKind.FORBIDDEN, f"the right to {right} is missing: {said}")
        case HTTPStatus.NOT_FOUND:
            return Failure(ObjectKind.MISSING, f"cannot {right}, it is not there: {said}")
        case HTTPStatus.TOO_MANY_REQUESTS:
            return Failure(ObjectKind.BUSY, "the API server is busy", _retry_after(error))
        case HTTPStatus.UNPROCESSABLE_ENTITY if code in stale:
            why = f"somebody else was quicker to {right}, or an admission policy refused it: {said}"
            return Failure(ObjectKind.STALE, why)
        case _ if code in stale:
            return Failure(ObjectKind.STALE, f"somebody else was quicker to {right}: {said}")
        case _ if HTTPStatus.BAD_REQUEST <= code < HTTPStatus.INTERNAL_SERVER_ERROR:
            return Failure(ObjectKind.REFUSED, f"the API server refuses to {right}: {said}")
        case _:
            return Failure(ObjectKind.AWAY, f"the API server failed with status {code}", _retry_after(error))


def _retry_after(error: httpx2.HTTPStatusError) -> float | None:
    """In seconds; the API server never sends a date."""
    told = error.response.headers.get("Retry-After", "")
    return float(told) if told.isdecimal() else None


def _node(node: NodeModel) -> base.ClusterNode:
    about, spec, status = node.metadata, node.spec, node.status
    taints = (spec.taints if spec is not None else None) or []
    conditions = (status.conditions if status is not None else None) or []
    ours = (place for place, taint in enumerate(taints) if (taint.key, taint.effect) == (words.TAINT, words.EFFECT))
    found = (condition for condition in conditions if condition.type == words.CONDITION)
    return base.ClusterNode(
        uid=(about.uid if about is not None else None) or "",
        version=(about.resourceVersion if about is not None else None) or "",
        condition=next(map(_condition, found), None),
        taints=len(taints),
        taint=next(ours, None),
    )


def _condition(found: NodeCondition) -> Condition:
    status = ConditionStatus(found.status) if found.status in _KNOWN else ConditionStatus.UNKNOWN
    outlook = Outlook(status, found.reason or "", found.message or "")
    return Condition(outlook, _seconds(found.lastHeartbeatTime), _seconds(found.lastTransitionTime))


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at is not None else 0.0


def _one_line(error: Exception) -> str:
    said = " ".join(f"{error}".split()) or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in said)[:_MOST_TOLD]
