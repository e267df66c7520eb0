"""HTTP/1.1 on the loopback, as an API server speaks it: answers, streams, and the faults that a test asks for."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from demo.standins.changes import Changes

JSON = "application/json"
TOKEN = "secret"  # noqa: S105 - any token; clients of a real API server send one, too


@dataclass(frozen=True)
class Request:
    """A request, with the parts of a Kubernetes path."""

    method: str
    path: str
    kind: str = ""  # of the body
    body: Any = None
    query: Mapping[str, str] = field(default_factory=dict)
    agent: str = ""  # the program that asks
    authorized: bool = True

    @property
    def about(self) -> str:
        """The method, the resource and the subresource, without names: ``PATCH nodes/status``."""
        return f"{self.method} {'/'.join(part for part in (self.resource, self.subresource) if part)}"

    @property
    def namespace(self) -> str:
        """The namespace of the object; empty for objects of the cluster."""
        return self._parts[0]

    @property
    def resource(self) -> str:
        """The resource, such as ``nodes``."""
        return self._parts[1]

    @property
    def name(self) -> str:
        """The name of the object; empty for a list."""
        return self._parts[2]

    @property
    def subresource(self) -> str:
        """The subresource, such as ``status``; empty for the object itself."""
        return self._parts[3]

    @property
    def _parts(self) -> tuple[str, str, str, str]:
        group, *rest = self.path.strip("/").split("/")
        del rest[: 1 if group == "api" else 2]  # the version, or the group and the version
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":  # noqa: PLR2004 - namespaces/NAME/RESOURCE
            namespace, rest = rest[1], rest[2:]
        resource, name, subresource, *_ = [*rest, "", "", ""]
        return namespace, resource, name, subresource


@dataclass(frozen=True)
class Answer:
    """An answer."""

    code: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None  # instead of ``body``

    def encoded(self) -> bytes:
        """The bytes for the connection."""
        body = self.raw if self.raw is not None else json.dumps(self.body).encode()
        headers = {"Content-Type": JSON, "Content-Length": str(len(body)), **self.headers}
        return head(self.code, headers) + body


# Writes to the connection itself: a watch, or a server that hangs. The connection is closed at its end.
Stream: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]
Fault: TypeAlias = Callable[[Request], "Answer | Stream | None"]


class ServerAway(Exception):
    """No answer: the server is closed, or it hangs."""


def status(code: int, reason: str, message: str = "", **headers: str) -> Answer:
    """An error as Kubernetes writes it."""
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message or reason, "code": code}
    return Answer(code, body, {name.replace("_", "-"): value for name, value in headers.items()})


def silence(_request: Request) -> Stream:
    """The fault of a server that hangs: no answer until the client has gone."""
    return lambda reader, _writer: reader.read()


def on(about: str, fault: Fault, times: int = 1_000_000) -> Fault:
    """A fault for one kind of request, and at most for this number of requests."""
    left = [times]

    def answer(request: Request) -> Answer | Stream | None:
        if request.about != about or not left[0]:
            return None
        left[0] -= 1
        return fault(request)

    return answer


class HttpApi(Changes):
    """A server whose answers a subclass gives in ``obey``. ``fault`` may replace them."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is for the file ``kubeconfig``."""
        super().__init__()
        self.requests: list[Request] = []
        self.fault: Fault = lambda _request: None
        self.after: Fault = lambda _request: None  # replaces the answer to a request that was carried out
        self.kubeconfig = folder / "kubeconfig"
        # Bound as long as the test runs, and without ``listen``: while the server is closed, the port refuses
        # connections, and no other program gets it.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self._port: int = self._place.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def obey(self, request: Request) -> Answer | Stream:
        """Carry out a request."""
        return status(404, "NotFound", request.path)

    async def open(self) -> None:
        """Serve, at the same address after each ``close``."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        # Without TLS, but a client would read all known CAs before its first request: most of the time of a test.
        cluster = {"server": f"http://127.0.0.1:{self._port}", "insecure-skip-tls-verify": True}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"token": TOKEN}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "current-context": "it",
        }
        self.kubeconfig.write_text(json.dumps(content))

    async def close(self) -> None:
        """Refuse new connections, and end the present ones."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def leave(self) -> None:
        """Close for ever."""
        await self.close()
        self._place.close()

    def ask(self, request: Request) -> Answer:
        """The answer to a client in this process, with the same faults; ServerAway if there is none."""
        if self._server is None:
            raise ServerAway(f"dial tcp 127.0.0.1:{self._port}: connect: connection refused")
        answer = self._answer(request)
        if not isinstance(answer, Answer):
            raise ServerAway("context deadline exceeded")
        return answer

    def _answer(self, request: Request) -> Answer | Stream:
        self.requests.append(request)
        try:
            answer = self.fault(request)
            if answer is None and not request.authorized:
                return status(401, "Unauthorized")
            if answer is None:
                done = self.obey(request)
                answer = self.after(request) or done
            return answer
        finally:
            self.changed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None  # noqa: S101 - narrows the type
        self._connections.add(connection)
        try:
            while True:
                answer = self._answer(await _read(reader))
                if not isinstance(answer, Answer):
                    await answer(reader, writer)
                    return
                writer.write(answer.encoded())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone, or this server is closed
        finally:
            self._connections.discard(connection)
            writer.close()


def head(code: int, headers: Mapping[str, str]) -> bytes:
    """The first lines of an answer."""
    lines = [f"HTTP/1.1 {code} x", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


async def _read(reader: asyncio.StreamReader) -> Request:
    before_body = await reader.readuntil(b"\r\n\r\n")
    first, *lines = before_body.decode().strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    return Request(
        method,
        path,
        headers.get("content-type", ""),
        json.loads(body or b"null"),
        dict(parse_qsl(query)),
        headers.get("user-agent", ""),
        authorized=headers.get("authorization") == f"Bearer {TOKEN}",
    )
