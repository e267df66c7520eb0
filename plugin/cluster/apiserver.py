"""The calls of the plugin and of the DRA driver to the API server: a client, time limits, and classified failures.

The only module that knows the client library. The library is an optional dependency, and costs more memory and time
than the rest of the plugin's start. So this module is imported by name (``reporter.connect``), and only if there are
credentials.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.models.core_v1 import Node as NodeModel
from lightkube.models.core_v1 import NodeCondition
from lightkube.resources import core_v1

from plugin.cluster import node_report
from plugin.cluster.credentials import Unusable
from plugin.cluster.node_report import Condition, ConditionContent, ConditionStatus, PendingEvent
from plugin.cluster.retry_loop import Failure, FailureKind

GROUP, VERSION = "resource.k8s.io", "v1"
FIELD_MANAGER = "autoclave"
# Plain objects: a newer server has fields that the library does not know.
_Claim = create_namespaced_resource(GROUP, VERSION, "ResourceClaim", "resourceclaims")
_Slice = create_global_resource(GROUP, VERSION, "ResourceSlice", "resourceslices")
_TaintRule = create_global_resource(GROUP, VERSION, "DeviceTaintRule", "devicetaintrules")

_KNOWN = {status.value for status in ConditionStatus}
_AT_ONCE = 500  # objects of a list in one answer
_LIST_WITHIN = 60.0  # seconds for all objects of a kind: a cluster may have very many
_MOST_QUOTED = 300  # characters of an answer of the API server


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """The fields of the Node that the reporter needs."""

    uid: str
    condition: Condition | None


class ApiServer:
    """The API server, for one node. Every call but the watches ends within a bound, with an answer or a Failure."""

    def __init__(self, credentials: Path, node: str, within: float) -> None:
        """Send nothing yet. ``credentials``: as ``find`` returns them; ``within``: the limit of a call, in seconds."""
        try:
            in_cluster = credentials.is_dir()
            chosen = KubeConfig.from_service_account(credentials) if in_cluster else KubeConfig.from_file(credentials)
            # Claims are plain objects, which have no types.
            self._client: Any = AsyncClient(chosen, namespace=node_report.NAMESPACE, timeout=httpx2.Timeout(within))
        except Exception as error:  # the library fails in many ways on a broken file
            raise Unusable(f"cannot use the credentials: {_one_line(error)}") from error
        self._node = node
        self._within = within

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    # -- the Node, for the reports

    async def read(self) -> ClusterNode:
        """The Node as it is now."""
        async with self._call("get", "nodes"):
            return _node(await self._client.get(core_v1.Node, self._node))

    async def put_condition(self, condition: Condition, checkpoint: str = "") -> ClusterNode:
        """Set our condition."""
        async with self._call("patch", "nodes/status"):
            patch = node_report.condition_patch(condition, checkpoint)
            return _node(await self._client.patch(core_v1.NodeStatus, self._node, patch))

    async def create_event(self, event: PendingEvent, uid: str) -> None:
        """Create an Event, unless it exists because the answer to an earlier call was lost."""
        created = msgspec.convert(node_report.event_object(event, self._node, uid), core_v1.Event)
        async with self._call("create", "events"):
            try:
                await self._client.create(created)
            except ApiError as error:
                if error.status.reason != "AlreadyExists":
                    raise

    # -- claims and slices, for the DRA driver

    async def claim(self, namespace: str, name: str) -> Mapping[str, Any]:
        """A ResourceClaim as it is now."""
        async with self._call("get", "resourceclaims"):
            claim = await self._client.get(_Claim, name, namespace=namespace)
            return _plain(claim)

    def claim_changes(self, namespace: str, name: str) -> AsyncGenerator[Mapping[str, Any] | None, None]:
        """The claim of this name now and after each change; None while there is none. Ends when the watch ends."""
        return self._changes(_Claim, "resourceclaims", name, namespace)

    async def claim_places(self, uids: Collection[str]) -> dict[str, tuple[str, str]]:
        """Namespace and name of each ResourceClaim of the cluster that has one of these UIDs."""
        async with call("list", "resourceclaims", _LIST_WITHIN):
            listed = self._client.list(_Claim, namespace="*", chunk_size=_AT_ONCE)
            named = [claim.metadata async for claim in listed if claim.metadata.uid in uids]
        return {each.uid: (each.namespace, each.name) for each in named}

    async def apply_slice(self, wanted: Mapping[str, Any], *, dry_run: bool = False) -> Mapping[str, Any]:
        """Create or replace a slice; returns what the API server made of it. ``dry_run`` stores nothing."""
        async with self._call("patch", "resourceslices"):
            applied = await self._client.apply(
                _Slice.from_dict(dict(wanted)), field_manager=FIELD_MANAGER, force=True, dry_run=dry_run
            )
            return _plain(applied)

    def slices(self, name: str) -> AsyncGenerator[Mapping[str, Any] | None, None]:
        """The slice of this name now and after each change; None while there is none. Ends when the watch ends."""
        return self._changes(_Slice, "resourceslices", name)

    async def _changes(
        self, kind: Any, what: str, name: str, namespace: str | None = None  # noqa: ANN401 - of the library
    ) -> AsyncGenerator[Mapping[str, Any] | None, None]:  # fmt: skip
        wanted = {"metadata.name": name}
        async with self._call("list", what):
            listed = self._client.list(kind, namespace=namespace, fields=wanted)
            found = [_plain(each) async for each in listed]
        yield found[0] if found else None
        version = listed.resourceVersion
        watch = self._client.watch(kind, namespace=namespace, fields=wanted, resource_version=version)
        while True:
            try:
                async with call("watch", what, None):
                    change, thing = await anext(watch)
            except StopAsyncIteration:
                return
            except Failure as failure:
                if failure.kind is FailureKind.STALE:  # normal after some hours without a change
                    return
                raise
            yield _plain(thing) if change != "DELETED" else None

    async def slices_of(self, driver: str) -> list[Mapping[str, Any]]:
        """All slices of a driver for this node."""
        async with self._call("list", "resourceslices"):
            wanted = {"spec.driver": driver, "spec.nodeName": self._node}
            return [_plain(resource_slice) async for resource_slice in self._client.list(_Slice, fields=wanted)]

    # -- rules that taint the devices of another driver

    async def taint_rules(self, labels: Mapping[str, str]) -> list[Mapping[str, Any]]:
        """The rules of the cluster that have these labels."""
        async with self._call("list", "devicetaintrules"):
            return [_plain(rule) async for rule in self._client.list(_TaintRule, labels=dict(labels))]

    async def apply_taint_rule(self, wanted: Mapping[str, Any]) -> None:
        """Create or replace a rule."""
        async with self._call("patch", "devicetaintrules"):
            rule = _TaintRule.from_dict(dict(wanted))
            await self._client.apply(rule, field_manager=FIELD_MANAGER, force=True)

    async def delete_taint_rule(self, name: str) -> None:
        """Delete a rule, unless it is gone already."""
        try:
            async with self._call("delete", "devicetaintrules"):
                await self._client.delete(_TaintRule, name)
        except Failure as failure:
            if failure.kind is not FailureKind.MISSING:
                raise

    def _call(self, verb: str, what: str) -> AbstractAsyncContextManager[None]:
        return call(verb, what, self._within)


@asynccontextmanager
async def call(verb: str, what: str, within: float | None) -> AsyncIterator[None]:
    """Limit the time of a whole call, with DNS, TLS and the answer, and raise a Failure for each error."""
    try:
        async with asyncio.timeout(within):
            yield
    except (TimeoutError, httpx2.TimeoutException):
        waited = "in time" if within is None else f"within {within:g} s"
        raise Failure(FailureKind.AWAY, f"the API server did not answer {waited}") from None
    except httpx2.HTTPStatusError as error:
        raise _failure(error, f"{verb} {what}") from None
    except (httpx2.HTTPError, OSError) as error:
        raise Failure(FailureKind.AWAY, f"cannot reach the API server: {_one_line(error)}") from None
    except Exception as error:  # the library fails in many ways on an invalid answer
        raise Failure(FailureKind.AWAY, f"the API server's answer is invalid: {_one_line(error)}") from error


def _failure(error: httpx2.HTTPStatusError, right: str) -> Failure:
    code, text = _code(error), _one_line(error)
    match code:
        case HTTPStatus.UNAUTHORIZED:
            return Failure(FailureKind.FORBIDDEN, f"the API server does not accept the credentials: {text}")
        case HTTPStatus.FORBIDDEN:
            return Failure(FailureKind.FORBIDDEN, f"the right to {right} is missing: {text}")
        case HTTPStatus.NOT_FOUND:
            return Failure(FailureKind.MISSING, f"cannot {right}, the object does not exist: {text}")
        case HTTPStatus.TOO_MANY_REQUESTS:
            return Failure(FailureKind.BUSY, "the API server is busy", _retry_after(error))
        case HTTPStatus.GONE:
            return Failure(FailureKind.STALE, f"the API server has forgotten the state before {right}: {text}")
        case HTTPStatus.CONFLICT:
            return Failure(FailureKind.STALE, f"another client changed the object before {right}: {text}")
        case _ if HTTPStatus.BAD_REQUEST <= code < HTTPStatus.INTERNAL_SERVER_ERROR:
            return Failure(FailureKind.REFUSED, f"the API server refuses to {right}: {text}")
        case _:
            return Failure(FailureKind.AWAY, f"the API server failed with status {code}", _retry_after(error))


def _code(error: httpx2.HTTPStatusError) -> int:
    """The status of the answer, or of an error that came as an event of a watch."""
    if _is_event(error):
        return (isinstance(error, ApiError) and error.status.code) or HTTPStatus.INTERNAL_SERVER_ERROR
    return error.response.status_code


def _is_event(error: httpx2.HTTPStatusError) -> bool:
    """Whether the error has no answer of its own; the types do not know that."""
    return getattr(error, "response", None) is None


def _retry_after(error: httpx2.HTTPStatusError) -> float | None:
    """The pause in seconds. The API server never sends a date."""
    seconds = "" if _is_event(error) else error.response.headers.get("Retry-After", "")
    return float(seconds) if seconds.isdecimal() else None


def _one_line(error: Exception) -> str:
    text = " ".join(f"{error}".split()) or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:_MOST_QUOTED]


def _node(node: NodeModel) -> ClusterNode:
    conditions = (node.status.conditions if node.status is not None else None) or []
    ours = (condition for condition in conditions if condition.type == node_report.CONDITION)
    return ClusterNode(
        uid=(node.metadata.uid if node.metadata is not None else None) or "",
        condition=next(map(_condition, ours), None),
    )


def _condition(condition: NodeCondition) -> Condition:
    status = ConditionStatus(condition.status) if condition.status in _KNOWN else ConditionStatus.UNKNOWN
    content = ConditionContent(status, condition.reason or "", condition.message or "")
    return Condition(content, _seconds(condition.lastHeartbeatTime), _seconds(condition.lastTransitionTime))


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at is not None else 0.0


def _plain(model: Any) -> dict[str, Any]:  # noqa: ANN401 - plain objects have no types
    return dict(model.to_dict())
