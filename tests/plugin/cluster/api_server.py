"""The API server of a node whose devices are reported: keeps the conditions and taints of the node, and events."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

from demo.standins import http_api
from demo.standins.http_api import JSON, Answer, HttpApi, Request, on, silence, status
from tests.patience import WITHIN

__all__ = ["CONDITION", "EVENTS", "NODE", "Answer", "ApiServer", "Request", "drip", "on", "silence", "status"]

NODE = "node-1"
CONDITION, EVENTS = "PATCH nodes/status", "POST events"  # requests


class ApiServer(HttpApi):
    """``open`` it; look at ``requests``, ``node`` and ``events``; put a ``fault`` in the way."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.events: dict[str, dict[str, Any]] = {}
        self.node: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "uid": "uid-1", "resourceVersion": "1"},
            "spec": {"taints": [{"key": "others", "effect": "NoExecute", "value": "1", "added-later": "x"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }

    async def until(self, predicate, within=WITHIN):
        await super().until(predicate, within)

    def bodies(self, about):
        """The bodies of these requests."""
        return [request.body for request in self.requests if request.about == about]

    def condition(self):
        """Ours, of the node."""
        found = [each for each in self.node["status"]["conditions"] if each["type"] == "AutoclaveDevicesHealthy"]
        return found[0] if found else None

    def says(self, status, reason=None):
        """Whether our condition does."""
        condition = self.condition() or {}
        return condition.get("status") == status and reason in (None, condition["reason"])

    def taints(self):
        return [taint["key"] for taint in self.node["spec"].get("taints", [])]

    def counts(self):
        """How often each thing happened, by reason and device."""
        return Counter((event["reason"], event["message"].split(" (")[0]) for event in self.events.values())

    def moved(self):
        """Somebody else changed the node."""
        about = self.node["metadata"]
        about["resourceVersion"] = str(int(about["resourceVersion"]) + 1)

    def obey(self, request: Request) -> Answer:
        match request.about:
            case "GET nodes":
                return Answer(200, self.node)
            case "PATCH nodes/status":
                assert request.kind == "application/strategic-merge-patch+json"
                (new,) = request.body["status"]["conditions"]
                conditions = [each for each in self.node["status"]["conditions"] if each["type"] != new["type"]]
                self.node["status"]["conditions"] = [*conditions, new]
                self.moved()
                return Answer(200, self.node)
            case "PATCH nodes":
                assert request.kind == "application/json-patch+json"
                return self._patch(request.body)
            case "POST events":
                name = request.body["metadata"]["name"]
                if name in self.events:
                    return status(409, "AlreadyExists")
                self.events[name] = request.body
                return Answer(201, request.body)
        return status(404, "NotFound", request.path)

    def _patch(self, patch: list[dict[str, Any]]) -> Answer:
        """RFC 6902 as far as it is used, on a copy."""
        node = json.loads(json.dumps(self.node))
        try:
            for step in patch:
                _apply(node, **step)
        except (AssertionError, LookupError) as error:
            return status(422, "", f"the patch does not apply: {error}")
        self.node = node
        self.moved()
        return Answer(200, self.node)


def _apply(node: Any, op: str, path: str, value: object = None) -> None:  # noqa: ANN401 - any JSON
    *way, last = path.strip("/").split("/")
    for part in way:
        node = node[int(part) if isinstance(node, list) else part]
    key: Any = last if isinstance(node, dict) else None if last == "-" else int(last)
    match op:
        case "test":
            assert node[key] == value, f"{path} is not {value}"
        case "remove":
            del node[key]
        case "add" if isinstance(node, list):
            node.insert(len(node) if key is None else key, value)
        case "add":
            node[key] = value


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(http_api.head(200, {"Content-Type": JSON, "Content-Length": "1000000"}))
    gone = asyncio.create_task(reader.read())
    while not gone.done():
        writer.write(b" ")
        await asyncio.wait({gone}, timeout=0.02)


def drip(_request):
    """The fault of a server that answers a byte at a time, without an end."""
    return _drip
