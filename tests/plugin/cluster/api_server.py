"""An API server for one node, over real HTTP on loopback: keeps what it is told, and fails as it is told to."""

import asyncio
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scrubber.ground.changed import Changed
from tests.patience import WITHIN

NODE = "node-1"
JSON = "application/json"


@dataclass(frozen=True)
class Request:
    """What came."""

    method: str
    path: str
    kind: str  # of the body
    body: Any

    @property
    def about(self):
        """The verb and the right that it takes."""
        what = self.path.removeprefix("/api/v1/").removeprefix("namespaces/default/").split("/")
        return f"{self.method} {'/'.join(part for part in what if part != NODE and not part.startswith(f'{NODE}.'))}"


@dataclass(frozen=True)
class Answer:
    """What goes back."""

    code: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None


class Silence(Exception):
    """Say nothing until the caller has gone."""


class Drip(Exception):
    """Answer a byte at a time, without an end, until the caller has gone."""


Fault = Callable[[Request], Answer | None]


def status(code: int, reason: str, message: str = "", **headers: str) -> Answer:
    """As Kubernetes words its errors."""
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message or reason, "code": code}
    return Answer(code, body, {name.replace("_", "-"): value for name, value in headers.items()})


class ApiServer(Changed):
    """``open`` it; look at ``requests``, ``node`` and ``events``; put a ``fault`` in the way."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.events: dict[str, dict[str, Any]] = {}
        self.node: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "uid": "uid-1", "resourceVersion": "1"},
            "spec": {"taints": [{"key": "others", "effect": "NoExecute", "value": "1", "added-later": "x"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        self.fault: Fault = lambda _request: None
        self.after: Fault = lambda _request: None  # in place of the answer, once the deed is done
        self.kubeconfig = folder / "kubeconfig"
        # Bound for as long as the test runs, and never listened on: while we are closed the port refuses, and nobody
        # else gets it.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self._port = self._place.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    async def open(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        # Without TLS, but the client would read every known CA before it speaks: most of a test's time.
        cluster = {"server": f"http://127.0.0.1:{self._port}", "insecure-skip-tls-verify": True}
        about = {
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"token": "secret"}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "current-context": "it",
        }
        self.kubeconfig.write_text(json.dumps(about))

    async def close(self):
        """The port refuses from now on; whoever speaks is cut off."""
        if self._server is None:
            return
        self._server.close()
        for talk in list(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def leave(self):
        """Closed for good."""
        await self.close()
        self._place.close()

    async def until(self, holds):
        async with asyncio.timeout(WITHIN):
            await Changed.until(self, holds)

    def told(self, about):
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
        return {(event["reason"], event["message"].split(" (")[0]): event["count"] for event in self.events.values()}

    def moved(self):
        """Somebody else changed the node."""
        about = self.node["metadata"]
        about["resourceVersion"] = str(int(about["resourceVersion"]) + 1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        try:
            while (request := await _read(reader)) is not None:
                await self._answer(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the caller has gone, or we have
        finally:
            self._talks.discard(talk)
            writer.close()

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(request)
        try:
            answer = self.fault(request)
            if answer is None:
                done = self._obey(request)
                answer = self.after(request) or done
        except Silence:
            self.notify()
            await reader.read()
            return
        except Drip:
            self.notify()
            await _drip(reader, writer)
            return
        finally:
            self.notify()
        body = answer.raw if answer.raw is not None else json.dumps(answer.body).encode()
        headers = {"Content-Type": JSON, "Content-Length": str(len(body)), **answer.headers}
        lines = [f"HTTP/1.1 {answer.code} x", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()

    def _obey(self, request: Request) -> Answer:
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
            case "PATCH events":
                assert request.kind == "application/merge-patch+json"
                name = request.path.rpartition("/")[2]
                if name not in self.events:
                    return status(404, "NotFound")
                self.events[name].update(request.body)
                return Answer(200, self.events[name])
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
    writer.write(f"HTTP/1.1 200 x\r\nContent-Type: {JSON}\r\nContent-Length: 1000000\r\n\r\n".encode())
    gone = asyncio.create_task(reader.read())
    while not gone.done():
        writer.write(b" ")
        await asyncio.wait({gone}, timeout=0.02)


async def _read(reader: asyncio.StreamReader) -> Request | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode().strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert headers["authorization"] == "Bearer secret"
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, target, _ = first.split(" ")
    return Request(method, target.partition("?")[0], headers.get("content-type", ""), json.loads(body or b"null"))


def on(about, fault: Fault, times=1_000_000):
    """A fault for one kind of request, so many times."""
    left = [times]

    def answer(request: Request) -> Answer | None:
        if request.about != about or not left[0]:
            return None
        left[0] -= 1
        return fault(request)

    return answer


def silence(_request):
    """The fault of a server that hangs."""
    raise Silence


def drip(_request):
    """The fault of a server that is slower than any patience."""
    raise Drip
