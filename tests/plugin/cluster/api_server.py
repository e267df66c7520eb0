"""The API server of a node whose devices are reported: keeps the conditions of the node, and events."""

import asyncio
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

    def counts(self):
        """How often each thing happened, by reason and device."""
        return Counter((event["reason"], event["message"].split(" (")[0]) for event in self.events.values())

    def obey(self, request: Request) -> Answer:
        match request.about:
            case "GET nodes":
                return Answer(200, self.node)
            case "PATCH nodes/status":
                assert request.kind == "application/strategic-merge-patch+json"
                (new,) = request.body["status"]["conditions"]
                conditions = [each for each in self.node["status"]["conditions"] if each["type"] != new["type"]]
                self.node["status"]["conditions"] = [*conditions, new]
                return Answer(200, self.node)
            case "POST events":
                name = request.body["metadata"]["name"]
                if name in self.events:
                    return status(409, "AlreadyExists")
                self.events[name] = request.body
                return Answer(201, request.body)
        return status(404, "NotFound", request.path)


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(http_api.head(200, {"Content-Type": JSON, "Content-Length": "1000000"}))
    gone = asyncio.create_task(reader.read())
    while not gone.done():
        writer.write(b" ")
        await asyncio.wait({gone}, timeout=0.02)


def drip(_request):
    """The fault of a server that answers a byte at a time, without an end."""
    return _drip
