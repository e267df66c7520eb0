"""The HTTP door over real sockets: right answers, wrong questions, and clients that are slow for ever."""

from __future__ import annotations

import asyncio
import gc
import re
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from structlog.testing import capture_logs

from ground import http_server
from ground.errors import FatalError
from tests.patience import WITHIN

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@asynccontextmanager
async def opened(registry: CollectorRegistry | None = None, obstacles=list) -> AsyncIterator[str]:
    async with http_server.HttpServer(registry or CollectorRegistry(), obstacles).serve("127.0.0.1:0") as address:
        yield address


async def get(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    def ask() -> tuple[int, str, str]:
        request = urllib.request.Request(f"http://{address}{path}", method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=WITHIN) as answer:  # noqa: S310 - http, as above
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()

    return await asyncio.to_thread(ask)


async def said(address: str, *parts: bytes) -> bytes:
    """What comes back for these bytes."""
    reader, writer = await asyncio.open_connection(*http_server.parse(address))
    for part in parts:
        writer.write(part)
    try:
        return await reader.read()
    finally:
        writer.close()


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other side ends it, one way or another."""
    received = bytearray()
    async with asyncio.timeout(WITHIN):
        try:
            while some := await reader.read(2**16):
                received += some
        except ConnectionError:
            pass
    return bytes(received)


async def test_metrics_have_the_format_that_accept_asks_for():
    registry = CollectorRegistry()
    Counter("autoclave_things", "Things.", registry=registry).inc(3, {"receipt": "abc"})
    async with opened(registry) as address:
        status, kind, text = await get(address, "/metrics", Accept=OPENMETRICS)
        assert (status, kind.split(";")[0]) == (200, "application/openmetrics-text")
        (family,) = text_string_to_metric_families(text)
        (sample,) = (it for it in family.samples if it.name == "autoclave_things_total")
        assert sample.exemplar is not None
        assert (sample.value, sample.exemplar.labels) == (3.0, {"receipt": "abc"})
        status, kind, text = await get(address, "/metrics?name=x")
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        assert "autoclave_things_total 3.0" in text


async def test_healthz_is_ok_and_readyz_names_obstacles():
    obstacles = ["the ledger cannot be written", "no device was found"]
    async with opened(obstacles=lambda: obstacles) as address:
        assert (await get(address, "/healthz"))[::2] == (200, "ok\n")
        status, _, text = await get(address, "/readyz")
        assert (status, text) == (
            503,
            "not ready: the ledger cannot be written\nnot ready: no device was found\n",
        )
        obstacles.clear()
        assert (await get(address, "/readyz"))[::2] == (200, "ready\n")


async def test_readyz_has_notes_for_people_beside_the_answer_for_probes():
    server = http_server.HttpServer(CollectorRegistry(), list, notes=lambda: ["an old policy is in force"])
    async with server.serve("127.0.0.1:0") as address:
        assert (await get(address, "/readyz"))[::2] == (200, "ready\nnote: an old policy is in force\n")


async def test_head_has_no_body_and_other_requests_are_errors():
    async with opened() as address:
        assert (await get(address, "/healthz", "HEAD"))[::2] == (200, "")
        assert (await get(address, "/else"))[0] == 404
        assert (await get(address, "/metrics", "POST"))[0] == 405


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\n" + b"a" * 9000 + b"\r\n\r\n", b"431"),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"400"),
    ],
)
async def test_an_invalid_request_is_a_400(asked, status):
    async with opened() as address:
        assert (await said(address, asked)).split(b" ")[1] == status


async def test_a_silent_connection_is_closed(monkeypatch):
    monkeypatch.setattr(http_server, "EXCHANGE_WITHIN", 0.3)
    async with opened() as address:
        silent = [await asyncio.open_connection(*http_server.parse(address)) for _ in range(20)]
        assert (await get(address, "/healthz"))[0] == 200
        for reader, writer in silent:
            assert await all_of(reader) == b""
            writer.close()


async def test_a_client_that_does_not_read_is_disconnected(monkeypatch):
    monkeypatch.setattr(http_server, "EXCHANGE_WITHIN", 0.3)

    class Much(Collector):
        def collect(self) -> Iterator[Metric]:
            family = Metric("autoclave_much", "Much.", "gauge")
            for number in range(300_000):
                family.add_sample("autoclave_much", {"number": str(number)}, 1.0)
            yield family

    registry = CollectorRegistry()
    registry.register(Much())
    async with opened(registry) as address:
        reader, writer = await asyncio.open_connection(*http_server.parse(address), limit=16)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        first = await reader.readuntil(b" ")  # it has begun, and now the client does not read
        assert first == b"HTTP/1.1 "
        assert (await get(address, "/healthz"))[0] == 200
        await asyncio.sleep(0.5)  # what is awaited is that nothing comes
        head, _, body = (await all_of(reader)).partition(b"\r\n\r\n")
        assert len(body) < int(head.split(b"Content-Length: ")[1].split()[0])
        writer.close()


async def test_a_new_connection_replaces_the_oldest(monkeypatch):
    """Some are given up before their exchange has begun."""
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    async with opened() as address:
        crowd = await asyncio.gather(*(asyncio.open_connection(*http_server.parse(address)) for _ in range(60)))
        for reader, _ in crowd[:-2]:
            assert await all_of(reader) == b""
        assert (await get(address, "/healthz"))[0] == 200
        last_reader, last_writer = crowd[-1]
        last_writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert (await all_of(last_reader)).startswith(b"HTTP/1.1 200"), "one came, one went"
        for _, writer in crowd:
            writer.close()


class Counted(Collector):
    """Figures that say how often they were made."""

    times = 0

    def collect(self) -> Iterator[Metric]:
        self.times += 1
        family = Metric("autoclave_times", "Times.", "gauge")
        family.add_sample("autoclave_times", {}, self.times)
        yield family


async def test_metrics_are_cached_for_half_a_second():
    registry, collector, now = CollectorRegistry(), Counted(), [100.0]
    registry.register(collector)
    collector.times = 0
    async with http_server.HttpServer(registry, list, lambda: now[0]).serve("127.0.0.1:0") as address:
        first = [await get(address, "/metrics") for _ in range(20)]
        assert (len(set(first)), collector.times) == (1, 1)
        now[0] += http_server.CACHE_SECONDS / 2
        assert "autoclave_times 2.0" in (await get(address, "/metrics", Accept=OPENMETRICS))[2], "each form is made"
        assert await get(address, "/metrics") == first[0]
        now[0] += http_server.CACHE_SECONDS / 2
        assert "autoclave_times 3.0" in (await get(address, "/metrics"))[2]
        assert "autoclave_times 2.0" in (await get(address, "/metrics", Accept=OPENMETRICS))[2]


async def test_an_accept_header_does_not_renew_cached_metrics():
    registry, collector = CollectorRegistry(), Counted()
    registry.register(collector)
    collector.times = 0
    async with http_server.HttpServer(registry, list, lambda: 100.0).serve("127.0.0.1:0") as address:
        for number in range(1, 9):
            accept = f"application/openmetrics-text;version={number}.0.0"
            status, kind, _ = await get(address, "/metrics", Accept=accept)
            assert (status, kind) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
            await get(address, "/metrics", Accept=f"text/plain;version={number}.0.0;escaping=values")
    assert collector.times == 2


async def test_metrics_that_fail_are_a_500_and_the_server_stays():
    class Broken(Collector):
        broken = False  # it is asked when it is registered, too

        def collect(self) -> Iterator[Metric]:
            if self.broken:
                raise RuntimeError("broken")
            yield Metric("autoclave_whole", "Whole.", "gauge")

    registry, collector = CollectorRegistry(), Broken()
    registry.register(collector)
    collector.broken = True
    async with opened(registry) as address:
        assert (await get(address, "/metrics"))[0] == 500
        assert (await get(address, "/healthz"))[0] == 200


async def test_an_address_in_use_names_the_flag():
    async with opened() as address:
        with pytest.raises(FatalError, match=r"cannot serve metrics at .*: address already in use.*--metrics-address"):
            async with http_server.HttpServer(CollectorRegistry(), list).serve(address):
                pass


TEXT, METRICS = "text/plain; version=0.0.4; charset=utf-8", "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/openmetrics-text;version=abc", TEXT),
        ("text/plain;version=;q=1, application/openmetrics-text;version=1..0", TEXT),
        ("application/openmetrics-text;version=0.0.1", TEXT),
        ("application/openmetrics-text", METRICS),
        ("application/openmetrics-text;version=1.0.0\r\n X-Mine: 1", TEXT),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.4",
            METRICS,  # as Prometheus asks
        ),
        ("", TEXT),
    ],
)
async def test_an_invalid_version_is_answered_in_text_without_an_echo(accept, kind, caplog):
    async with opened() as address:
        answer = await said(address, f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n".encode())
    head, _, _ = answer.partition(b"\r\n\r\n")
    assert head.decode().splitlines() == [
        "HTTP/1.1 200 OK",
        f"Content-Type: {kind}",
        "Content-Length: 0" if kind is TEXT else "Content-Length: 6",
        "Connection: close",
    ]
    assert not caplog.records


WORDS = st.one_of(
    st.sampled_from(
        [b"GET", b"HEAD", b"/metrics", b"/readyz", b"HTTP/1.1", b"Accept", b"Host", b":", b";", b",", b"=", b" ", b"?"]
    ),
    st.sampled_from(
        [b"\r\n", b"\r", b"\n", b"\t", b"\0", b"\xff", b"version", b"escaping", b"q", b"1.0", b"..", b"abc"]
    ),
    st.sampled_from([b"application/openmetrics-text", b"text/plain", b"=?utf-8?q?=ff?=", b"Content-Type: multipart/x"]),
    st.binary(max_size=6),
)
QUESTIONS = st.one_of(
    st.lists(WORDS, max_size=40).map(b"".join),
    st.lists(WORDS, max_size=40).map(lambda words: b"GET /metrics HTTP/1.1\r\n" + b"".join(words)),
    st.lists(WORDS, max_size=40).map(lambda words: b"GET /metrics HTTP/1.1\r\nAccept: " + b"".join(words)),
    st.lists(WORDS, max_size=20).map(
        lambda words: b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=" + b"".join(words)
    ),
)


@given(questions=st.lists(QUESTIONS, min_size=1, max_size=8))
@settings(max_examples=25)
def test_every_request_gets_an_answer(questions):
    faults: list[dict[str, object]] = []
    gc.freeze()  # the collection below searches what this example has made, not all that the tests have made before it

    async def ask() -> list[bytes]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        async with opened() as address:
            return [await said(address, question + b"\r\n\r\n") for question in questions]

    with capture_logs() as logged:
        answers = asyncio.run(ask())
    for answer in answers:
        assert re.match(rb"HTTP/1\.1 (200|400|404|405) .*\r\n\r\n", answer, re.DOTALL), answer
    gc.collect()  # an error that is not retrieved is logged at its end
    assert (faults, [it["event"] for it in logged]) == ([], ["showing metrics"])


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("127.0.0.1:9475", ("127.0.0.1", 9475)),
        ("[::1]:0", ("::1", 0)),
        ("fd00::7:9475", ("fd00::7", 9475)),
        ("node.example:80", ("node.example", 80)),
    ],
)
def test_addresses(address, parsed):
    assert http_server.parse(address) == parsed


@pytest.mark.parametrize(
    "address", ["", "9475", ":9475", "host:", "host:65536", "fd00::7", "a:b:9475", "[::1]", "[host]:1", "a:-1"]
)
def test_an_invalid_address_is_refused(address):
    with pytest.raises(ValueError, match=r"^HOST:PORT such as 127.0.0.1:9475"):
        http_server.parse(address)
