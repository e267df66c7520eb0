"""A small HTTP door: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for probes.

Anybody who reaches the address may ask, so whoever asks slowly, or for ever, costs a connection for a few seconds and
nothing else; where all are taken, the oldest is given up for who comes now. An answer is made on the loop, between two
other things, so that it is of one moment. Figures are made for all who ask within half a second at once: whoever asks
without a pause takes no more of the loop than that.
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
from enum import Enum
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client import exposition as text
from prometheus_client.openmetrics import exposition as openmetrics

from scrubber.ground import log
from scrubber.ground.errors import FatalError

logger = log.get("metrics")

PATIENCE = 5.0  # seconds for a whole exchange: Prometheus gives up on a scrape after ten
MOST = 64  # exchanges at a time
FRESH = 0.5  # seconds for which figures are shown again as they were made: making them keeps the loop from all else
LONGEST = 8192  # bytes of a question
HIGHEST_PORT = 65535
TEXT = "text/plain; charset=utf-8"

Obstacles = Callable[[], Sequence[str]]  # what is in the way of being ready; nothing is
Clock = Callable[[], float]


def parse(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[IPV6]:PORT``; port 0 takes any. ValueError says what was expected.

    The brackets may be missing: a manifest puts the pod's address in front of a port and cannot know of which family it
    will be.
    """
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not port.isdecimal() or int(port) > HIGHEST_PORT or not bare:
        raise ValueError("expected HOST:PORT such as 127.0.0.1:9475 or [::1]:9475")
    if bare != host or ":" in bare:
        ipaddress.IPv6Address(bare)
    return bare, int(port)


class Form(Enum):
    """In which figures are shown. There are two, whatever is asked for: each is made by itself."""

    TEXT = text.CONTENT_TYPE_PLAIN_0_0_4
    OPENMETRICS = openmetrics.CONTENT_TYPE_LATEST

    def of(self, registry: CollectorRegistry) -> bytes:
        """These figures."""
        if self is Form.TEXT:
            return text.generate_latest(registry)
        made: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # it has no annotations
        return made


def form(accept: str) -> Form:
    """What is asked for by this header; text, where that cannot be told."""
    try:
        _, kind = text.choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is none
        return Form.TEXT
    return Form.OPENMETRICS if kind.startswith("application/openmetrics-text") else Form.TEXT


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
    """What is behind an address."""

    def __init__(self, registry: CollectorRegistry, obstacles: Obstacles, clock: Clock = time.monotonic) -> None:
        """Nobody can ask before ``serve``."""
        self._registry = registry
        self._obstacles = obstacles
        self._clock = clock
        self._exchanges: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # the oldest first
        self._made: dict[Form, tuple[float, _Reply]] = {}  # when, and what

    @asynccontextmanager
    async def serve(self, address: str) -> AsyncIterator[str]:
        """Answer under this address until the end; gives the one that it became. FatalError if it cannot be had."""
        host, port = parse(address)
        try:
            server = await asyncio.start_server(self._meet, host, port, limit=LONGEST)
        except OSError as error:
            why = (os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)).lower()
            raise FatalError(
                f"cannot show metrics at {address}: {why}; choose another with --metrics-address"
            ) from error
        async with server:
            bound = server.sockets[0].getsockname()
            shown = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
            logger.info("showing metrics", address=shown)
            try:
                yield shown
            finally:
                server.close()
                await self._hang_up()

    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._exchanges) >= MOST:
            self._give_up()
        exchange = asyncio.create_task(self._talk(reader, writer))
        self._exchanges[exchange] = writer
        exchange.add_done_callback(lambda done: self._exchanges.pop(done, None))

    def _give_up(self) -> None:
        """The oldest: who means well is done within milliseconds, and who comes now may be a probe of the kubelet."""
        oldest = next(iter(self._exchanges))
        writer = self._exchanges.pop(oldest)  # now: others may come before it has come to its end
        writer.transport.abort()  # nor does one come to its end that has not begun
        oldest.cancel()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._exchange(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):  # slow, or gone: no news to anybody
            pass
        finally:
            writer.transport.abort()  # nothing, after an exchange that came to its end

    async def _hang_up(self) -> None:
        exchanges = tuple(self._exchanges)
        for exchange in exchanges:
            exchange.cancel()
        await asyncio.gather(*exchanges, return_exceptions=True)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            method, reply = "", _Reply(b"the question is too long\n", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            method, reply = self._answer(asked)
        writer.write(reply.head() + (b"" if method == "HEAD" else reply.body))
        writer.close()
        await writer.wait_closed()

    def _answer(self, asked: bytes) -> tuple[str, _Reply]:
        first, _, rest = asked.partition(b"\r\n")
        words = first.decode("latin-1").split(" ")
        try:
            method, target, _version = words
            headers = http.client.parse_headers(io.BytesIO(rest))
        except (ValueError, http.client.HTTPException):
            return "", _Reply(b"this is no HTTP\n", HTTPStatus.BAD_REQUEST)
        if method not in ("GET", "HEAD"):
            return method, _Reply(b"only GET and HEAD\n", HTTPStatus.METHOD_NOT_ALLOWED)
        return method, self._look(target.partition("?")[0], headers)

    def _look(self, path: str, headers: Message) -> _Reply:
        match path:
            case "/metrics":
                return self._metrics(headers.get("Accept", ""))
            case "/healthz":
                return _Reply(b"ok\n")
            case "/readyz":
                return self._ready()
            case _:
                return _Reply(b"there are /metrics, /healthz and /readyz\n", HTTPStatus.NOT_FOUND)

    def _metrics(self, accept: str) -> _Reply:
        asked, now = form(accept), self._clock()
        made, reply = self._made.get(asked, (now - FRESH, None))
        if reply is None or now - made >= FRESH:
            reply = self._make(asked)
            self._made[asked] = now, reply
        return reply

    def _make(self, asked: Form) -> _Reply:
        try:
            return _Reply(asked.of(self._registry), kind=asked.value)
        except Exception:  # a fault of ours keeps nobody from a GPU
            logger.exception("cannot make the metrics")
            return _Reply(b"cannot make the metrics: look into the log\n", HTTPStatus.INTERNAL_SERVER_ERROR)

    def _ready(self) -> _Reply:
        reasons = self._obstacles()
        if not reasons:
            return _Reply(b"ready\n")
        return _Reply("".join(f"not ready: {why}\n" for why in reasons).encode(), HTTPStatus.SERVICE_UNAVAILABLE)
