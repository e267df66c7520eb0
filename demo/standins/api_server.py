"""An API server for tests: nodes, ResourceSlices, ResourceClaims and DeviceTaintRules, over HTTP on the loopback.

It has the verbs that a DRA driver, its kubelet and the resource claim controller use. README.md says
what it copies. It checks no schema, no rights and no admission policy.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from demo.standins.http_api import JSON, Answer, HttpApi, Request, Stream, head, status

Object: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, str, str]  # resource, namespace, name

NODES, SLICES, CLAIMS, RULES = "nodes", "resourceslices", "resourceclaims", "devicetaintrules"
APPLY = "application/apply-patch+yaml"
_KINDS = {NODES: "Node", SLICES: "ResourceSlice", CLAIMS: "ResourceClaim", RULES: "DeviceTaintRule"}
_WATCH_HEADERS = {"Content-Type": JSON, "Transfer-Encoding": "chunked"}
_LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True)
class Change:
    """One change, as a watch reports it."""

    version: int
    kind: str  # ADDED, MODIFIED or DELETED
    resource: str
    thing: Object


class ApiServer(HttpApi):
    """Keeps objects in memory; the objects stay while the server is closed."""

    def __init__(self, folder: Path, *nodes: str) -> None:
        """``nodes``: the names of the nodes that exist."""
        super().__init__(folder)
        self.keeps_taints = True  # False: as without the feature gate DRADeviceTaints
        self._objects: dict[Key, Object] = {}
        self._changes: list[Change] = []
        self._version = 0  # the resourceVersion of the last change
        self._oldest = 0  # no watch can begin before this resourceVersion
        self._watches = 0  # a watch ends when this number changes
        for name in nodes:
            self.create(NODES, {"metadata": {"name": name}, "spec": {}, "status": {}})

    # -- for the test and for controllers

    def objects(self, resource: str) -> list[Object]:
        """Copies of the objects of one resource, by name."""
        return [copy.deepcopy(thing) for key, thing in sorted(self._objects.items()) if key[0] == resource]

    def find(self, resource: str, name: str, namespace: str = "") -> Object | None:
        """A copy of an object."""
        return copy.deepcopy(self._objects.get((resource, namespace, name)))

    def create(self, resource: str, thing: Object) -> Object:
        """Create an object, with a new UID."""
        thing = copy.deepcopy(thing)
        thing["metadata"]["uid"] = str(uuid.uuid4())
        group = "v1" if resource == NODES else "resource.k8s.io/v1"
        return self.put(resource, {"apiVersion": group, "kind": _KINDS[resource], **thing})

    def put(self, resource: str, thing: Object) -> Object:
        """Create or replace an object. Without a difference the object keeps its resourceVersion."""
        thing = copy.deepcopy(thing)
        key, before = self._key(resource, thing), self._objects.get(self._key(resource, thing))
        if resource == SLICES:
            self._drop_fields(thing)
        if before is not None and _without_version(before) == _without_version(thing):
            return copy.deepcopy(before)
        self._objects[key] = thing
        self._record("ADDED" if before is None else "MODIFIED", resource, thing)
        return copy.deepcopy(thing)

    def delete(self, resource: str, name: str, namespace: str = "") -> None:
        """Delete an object. An allocated claim stays until its allocation ends, as with Kubernetes' finalizer."""
        thing = self._objects[resource, namespace, name]
        if resource == CLAIMS and (thing.get("status") or {}).get("allocation"):
            thing["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
            self._record("MODIFIED", resource, thing)
            return
        del self._objects[resource, namespace, name]
        self._record("DELETED", resource, thing)

    def end_watches(self) -> None:
        """End all watches without an error, as a server does after some minutes."""
        self._watches += 1
        self.changed()

    def compact(self) -> None:
        """Forget all changes so far: a watch from an older resourceVersion gets the error 410 Gone."""
        self._oldest = self._version

    # -- requests

    def obey(self, request: Request) -> Answer | Stream:
        """Carry out a request."""
        if request.resource not in _KINDS:
            return status(404, "NotFound", f"the server could not find {request.path}")
        match request.method:
            case "GET" if request.name:
                return self._get(request)
            case "GET" if request.query.get("watch") in ("true", "1"):
                return self._watch(request)
            case "GET":
                return self._list(request)
            case "POST" if not request.name:
                return self._post(request)
            case "PATCH" if request.kind == APPLY:
                return self._apply(request)
            case "DELETE":
                return self._delete(request)
        return status(405, "MethodNotAllowed", f"{request.about} with {request.kind}")

    def _get(self, request: Request) -> Answer:
        thing = self.find(request.resource, request.name, request.namespace)
        return _missing(request) if thing is None else Answer(200, thing)

    def _list(self, request: Request) -> Answer:
        items = [thing for thing in self.objects(request.resource) if _selected(thing, request)]
        about = {"resourceVersion": str(self._version)}
        return Answer(200, {"kind": f"{_KINDS[request.resource]}List", "metadata": about, "items": items})

    def _post(self, request: Request) -> Answer:
        thing = dict(request.body)
        thing["metadata"] = {**thing["metadata"], **({"namespace": request.namespace} if request.namespace else {})}
        if self._key(request.resource, thing) in self._objects:
            return status(409, "AlreadyExists", f'{request.resource} "{thing["metadata"]["name"]}" already exists')
        return Answer(201, self.create(request.resource, thing))

    def _delete(self, request: Request) -> Answer:
        if request.name and self.find(request.resource, request.name, request.namespace) is None:
            return _missing(request)
        for thing in self.objects(request.resource):
            _, namespace, name = self._key(request.resource, thing)
            if request.name in ("", name) and namespace == request.namespace and _selected(thing, request):
                self.delete(request.resource, name, namespace)
        return Answer(200, {"kind": "Status", "status": "Success"})

    def _apply(self, request: Request) -> Answer:
        """Server-side apply, for slices and rules."""
        if not request.query.get("fieldManager"):
            return status(400, "BadRequest", "fieldManager is required for apply patch")
        before = self.find(request.resource, request.name, request.namespace)
        expected = request.body["metadata"]
        for name in ("uid", "resourceVersion"):
            if name in expected and expected[name] != ((before or {}).get("metadata") or {}).get(name):
                return status(409, "Conflict", f"the object has been modified: {name} differs")
        if request.resource not in ("resourceslices", "devicetaintrules") or request.subresource:
            return status(405, "MethodNotAllowed", request.about)
        if request.query.get("dryRun"):
            tried = copy.deepcopy(request.body)
            self._drop_fields(tried)
            return Answer(200, tried)
        return self._apply_whole(request.resource, request.body, before)

    def _drop_fields(self, resource_slice: Object) -> None:
        """Drop what needs a feature gate, as the API server does."""
        for device in resource_slice["spec"].get("devices") or ():
            if not self.keeps_taints:
                device.pop("taints", None)

    def _apply_whole(self, resource: str, wanted: Object, before: Object | None) -> Answer:
        if before is None:
            return Answer(201, self.create(resource, wanted))
        metadata = {**before["metadata"], **wanted["metadata"]}
        return Answer(200, self.put(resource, {**before, "metadata": metadata, "spec": wanted["spec"]}))

    def _watch(self, request: Request) -> Answer | Stream:
        since = int(request.query.get("resourceVersion") or self._version)
        if since < self._oldest:
            return watch_error(410, "Expired", f"too old resource version: {since} ({self._oldest})")

        async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(head(200, _WATCH_HEADERS))
            gone = asyncio.create_task(reader.read())
            gone.add_done_callback(lambda _: self.changed())
            watches, sent = self._watches, since

            def ended() -> bool:
                return watches != self._watches or gone.done()

            def news() -> list[Change]:
                return [change for change in self._changes if change.version > sent]

            try:
                while not ended():
                    for change in news():
                        if change.resource == request.resource and _selected(change.thing, request):
                            writer.write(_chunk({"type": change.kind, "object": change.thing}))
                    sent = self._version
                    await writer.drain()
                    await self.until(lambda: ended() or news(), None)
                writer.write(_LAST_CHUNK)
            finally:
                gone.cancel()

        return stream

    # -- internal

    def _key(self, resource: str, thing: Mapping[str, Any]) -> Key:
        namespace = thing["metadata"].get("namespace", "default") if resource == CLAIMS else ""
        return resource, namespace, thing["metadata"]["name"]

    def _record(self, kind: str, resource: str, thing: Object) -> None:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        self._changes.append(Change(self._version, kind, resource, copy.deepcopy(thing)))
        self.changed()


def watch_error(code: int, reason: str, message: str = "") -> Stream:
    """A watch that ends with an error, which is a line of the stream. Also for the ``fault`` of a watch."""

    async def stream(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        event = _chunk({"type": "ERROR", "object": status(code, reason, message).body})
        writer.write(head(200, _WATCH_HEADERS) + event + _LAST_CHUNK)
        await writer.drain()

    return stream


def _selected(thing: Mapping[str, Any], request: Request) -> bool:
    """Whether the selectors of a request select an object: labels, or fields such as ``metadata.name``."""
    if request.namespace and thing["metadata"].get("namespace", "default") != request.namespace:
        return False
    labels = thing["metadata"].get("labels") or {}
    for selector in filter(None, request.query.get("labelSelector", "").split(",")):
        name, _, wanted = selector.partition("=")
        if labels.get(name) != wanted:
            return False
    for selector in filter(None, request.query.get("fieldSelector", "").split(",")):
        path, _, wanted = selector.partition("=")
        value: Any = thing
        for part in path.split("."):
            value = (value or {}).get(part)
        if value != wanted.lstrip("="):
            return False
    return True


def _missing(request: Request) -> Answer:
    return status(404, "NotFound", f'{request.resource} "{request.name}" not found')


def _without_version(thing: Object) -> Object:
    metadata = {name: value for name, value in thing["metadata"].items() if name != "resourceVersion"}
    return {**thing, "metadata": metadata}


def _chunk(event: Object) -> bytes:
    line = json.dumps(event).encode() + b"\n"
    return f"{len(line):x}\r\n".encode() + line + b"\r\n"
