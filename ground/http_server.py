"""A small HTTP server: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for probes.

Anybody who reaches the address may connect. So a slow client occupies one connection for a few seconds and nothing
else, and a new connection replaces the oldest one when all are in use. Metrics are made on the event loop, so that all
values are of one moment. They are cached for half a second, so that frequent requests do not occupy the loop.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import ipaddress
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client import exposition as text
from prometheus_client.openmetrics import exposition as openmetrics

from ground import log
from ground.errors import FatalError

logger = log.get("metrics")

EXCHANGE_WITHIN = 5.0  # seconds for a request and its answer: a Prometheus scrape times out after ten
MAX_CONNECTIONS = 64  # connections at a time
CACHE_SECONDS = 0.5  # seconds for which metrics are cached: the event loop is blocked while they are made
MAX_REQUEST_BYTES = 8192  # bytes of a request
HIGHEST_PORT = 65535
_EXPECTED = "HOST:PORT such as 127.0.0.1:9475 or [::1]:9475"
TEXT = "text/plain; charset=utf-8"
METRICS, OPENMETRICS = text.CONTENT_TYPE_PLAIN_0_0_4, openmetrics.CONTENT_TYPE_LATEST

Obstacles = Callable[[], Sequence[str]]  # why the program is not ready; empty: it is
Clock = Callable[[], float]


def parse(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[IPV6]:PORT``; port 0 is any free port. ValueError says what was expected.

    The brackets are optional: a manifest puts the pod's address before a port and does not know its family.
    """
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not port.isdecimal() or int(port) > HIGHEST_PORT or not bare:
        raise ValueError(_EXPECTED)
    if bare != host or ":" in bare:
        try:
            ipaddress.IPv6Address(bare)
        except ValueError:
            raise ValueError(_EXPECTED) from None
    return bare, int(port)


def kind_of(accept: str) -> str:
    """The content type of the metrics that an Accept header asks for: one of two; text if the header is unreadable."""
    try:
        _, kind = text.choose_encoder(accept)
    except (TypeError, ValueError):  # an invalid version
        return METRICS
    return OPENMETRICS if kind.startswith("application/openmetrics-text") else METRICS


@dataclass(frozen=True, slots=True)
class _Reply:
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    kind: str = TEXT

    def head(self) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.kind}",
            f"Content-Length: {len(self.body)}",
            "Connection: close",
        ]
        if self.status is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET, HEAD")
        return "\r\n".join((*lines, "", "")).encode()


class HttpServer:
    """The server for one registry."""

    def __init__(
        self,
        registry: CollectorRegistry,
        obstacles: Obstacles,
        clock: Clock = time.monotonic,
        *,
        notes: Obstacles = tuple,
    ) -> None:
        """``notes``: what people should know although it makes the program no less ready."""
        self._notes = notes
        self._registry = registry
        self._obstacles = obstacles
        self._clock = clock
        self._exchanges: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # the oldest first
        self._made: dict[str, tuple[float, _Reply]] = {}  # by content type: the time, and the cached answer

    @asynccontextmanager
    async def serve(self, address: str) -> AsyncIterator[str]:
        """Serve on this address within the context; yields the bound address. FatalError if it cannot be bound."""
        host, port = parse(address)
        try:
            server = await asyncio.start_server(self._accept, host, port, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            why = (os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)).lower()
            raise FatalError(
                f"cannot serve metrics at {address}: {why}", "choose another address with --metrics-address"
            ) from error
        async with server:
            bound = server.sockets[0].getsockname()
            shown = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
            logger.info("showing metrics", address=shown)
            try:
                yield shown
            finally:
                server.close()
                exchanges = tuple(self._exchanges)
                for exchange in exchanges:
                    exchange.cancel()
                await asyncio.gather(*exchanges, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._exchanges) >= MAX_CONNECTIONS:
            # A good client ends within milliseconds, and the new one may be a probe of the kubelet.
            oldest = next(iter(self._exchanges))
            waiting = self._exchanges.pop(oldest)  # at once: other connections may arrive before it has ended
            waiting.transport.abort()  # a task that has not begun would never run its finally
            oldest.cancel()
        exchange = asyncio.create_task(self._serve_client(reader, writer))
        self._exchanges[exchange] = writer
        exchange.add_done_callback(lambda done: self._exchanges.pop(done, None))

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(EXCHANGE_WITHIN):
                await self._answer_request(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):  # a slow or disconnected client
            pass
        finally:
            writer.transport.abort()  # does nothing after a complete answer

    async def _answer_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            method, reply = "", _Reply(b"the request is too long\n", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            method, reply = self._answer(request)
        writer.write(reply.head() + (b"" if method == "HEAD" else reply.body))
        writer.close()
        await writer.wait_closed()

    def _answer(self, request: bytes) -> tuple[str, _Reply]:
        first, _, rest = request.partition(b"\r\n")
        words = first.decode("latin-1").split(" ")
        try:
            method, target, _version = words
            headers = http.client.parse_headers(io.BytesIO(rest))
        except (ValueError, http.client.HTTPException):
            return "", _Reply(b"this is not HTTP\n", HTTPStatus.BAD_REQUEST)
        if method not in ("GET", "HEAD"):
            return method, _Reply(b"only GET and HEAD are supported\n", HTTPStatus.METHOD_NOT_ALLOWED)
        return method, self._respond(target.partition("?")[0], headers)

    def _respond(self, path: str, headers: Message) -> _Reply:
        match path:
            case "/metrics":
                return self._metrics(headers.get("Accept", ""))
            case "/healthz":
                return _Reply(b"ok\n")
            case "/readyz":
                reasons = "".join(f"not ready: {why}\n" for why in self._obstacles())
                status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
                notes = "".join(f"note: {note}\n" for note in self._notes())
                return _Reply(((reasons or "ready\n") + notes).encode(), status)
            case _:
                return _Reply(b"not found: use /metrics, /healthz or /readyz\n", HTTPStatus.NOT_FOUND)

    def _metrics(self, accept: str) -> _Reply:
        kind, now = kind_of(accept), self._clock()
        made, reply = self._made.get(kind, (now - CACHE_SECONDS, None))
        if reply is not None and now - made < CACHE_SECONDS:
            return reply
        make = openmetrics.generate_latest if kind == OPENMETRICS else text.generate_latest
        try:
            reply = _Reply(make(self._registry), kind=kind)
        except Exception:  # a fault in the metrics must not stop the program
            logger.exception("cannot make the metrics")
            reply = _Reply(b"cannot make the metrics: the log has the error\n", HTTPStatus.INTERNAL_SERVER_ERROR)
        self._made[kind] = now, reply
        return reply
