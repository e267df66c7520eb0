"""What a scrape costs: a service with 8 GPUs of 7 slices each, without the HTTP server."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request

from benchmarks import rig
from benchmarks.figures import Figure, quantile
from scrubber.ground import http_server

DEVICES, SCRAPES = 56, 60
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


async def measure(*, quick: bool) -> list[Figure]:
    """One scrape after the other, each with figures made anew, as Prometheus gets them."""
    scrapes = 10 if quick else SCRAPES
    async with rig.service(DEVICES, flags=("--metrics-address", "127.0.0.1:0")) as stage:
        url = f"http://{_address(stage.service.log.read_text())}/metrics"
        shown = await asyncio.to_thread(_fetch, url)
        took = []
        for _ in range(scrapes):
            await asyncio.sleep(http_server.CACHE_SECONDS)
            took.append(await asyncio.to_thread(_timed, url))
    series = sum(not line.startswith("#") for line in shown.splitlines())
    name = f"a scrape of the service, {DEVICES} devices"
    return [
        Figure(f"{name}: p50", quantile(took, 0.5) * 1000, "ms", scrapes, "<= 10 ms"),
        Figure(f"{name}: p99", quantile(took, 0.99) * 1000, "ms", scrapes),
        Figure(f"{name}: series", series, "series", 1, "<= 1000"),
    ]


def _address(log: str) -> str:
    return next(str(json.loads(line)["address"]) for line in log.splitlines() if "showing metrics" in line)


def _fetch(url: str) -> str:
    request = urllib.request.Request(url, headers=OPENMETRICS)  # noqa: S310 - our own service
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - the same
        return str(answer.read(), "utf-8")


def _timed(url: str) -> float:
    began = time.perf_counter()
    _fetch(url)
    return time.perf_counter() - began
