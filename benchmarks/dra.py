"""What a pod with a claim waits for: Prepare of a clean device, and Unprepare, which includes the scrub of the device.

The baseline in the same run is a DRA driver that does nothing, in the same language. It reads the same claims from the
same stand-in of an API server: every DRA driver must, because the kubelet names no device.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from benchmarks import processes, rig
from benchmarks.figures import Figure, quantile
from demo.stage import Stage
from demo.standins.api_server import CLAIMS, ApiServer
from demo.standins.cluster import Cluster
from demo.standins.kubelet import Kubelet
from plugin.dra.config import DRIVER
from plugin.kubelet_api import dra_pb2 as wire
from plugin.kubelet_api import dra_pb2_grpc
from scrubber.ledger import database
from scrubber.node import clock

NODE = "node"
GPUS, MEMORY, POLICY = 8, "64MiB", "default"
ROUNDS = 60
SETTLES = 0.1  # seconds from the end of a claim to the next one: the news of the end is sent meanwhile
BUSY = 20.0  # seconds
WITHIN = 60.0  # seconds for a call
FLOOR = "do-nothing DRA driver"


@dataclass
class Times:
    """Milliseconds, call by call."""

    prepare: list[float] = field(default_factory=list)
    unprepare: list[float] = field(default_factory=list)
    scrub: list[float] = field(default_factory=list)  # within the unprepare beside it


async def measure(*, quick: bool) -> list[Figure]:
    """One claim after the other with both drivers, then all devices at once with ours."""
    rounds = 4 if quick else ROUNDS
    async with rig.service(GPUS, memory=MEMORY, policy=POLICY) as stage, _api_server(stage.root) as server:
        floor = stage.root / "floor.sock"
        options = ("--socket", str(floor), "--kubeconfig", str(server.kubeconfig), "--driver", DRIVER)
        async with _process("-m", "benchmarks.dra_floor", *options), _claims(floor, server) as claims:
            nothing = await claims.in_turn(stage.uuids, rounds)
        async with _ours(stage, server) as (driver, claims):
            ours = await claims.in_turn(stage.uuids, rounds, stage)
            written, seconds = await _busy(claims, server, stage, 3.0 if quick else BUSY)
            resident = processes.rss(driver) / 2**20
    return [*_calls(nothing, ours), *_figures(written, seconds, resident)]


def _calls(nothing: Times, ours: Times) -> list[Figure]:
    count = len(ours.prepare)
    least, prepared = quantile(nothing.prepare, 0.5), quantile(ours.prepare, 0.5)
    rest = [whole - scrub for whole, scrub in zip(ours.unprepare, ours.scrub, strict=True)]
    about = f"autoclave dra, {GPUS} devices of {MEMORY}"
    return [
        Figure(f"{FLOOR}: Prepare, p50", least, "ms", count),
        Figure(f"{FLOOR}: Prepare, p99", quantile(nothing.prepare, 0.99), "ms", count),
        Figure(f"{FLOOR}: Unprepare, p50", quantile(nothing.unprepare, 0.5), "ms", count),
        Figure(f"{about}: Prepare of a CLEAN device, p50", prepared, "ms", count),
        Figure(f"{about}: Prepare of a CLEAN device, p99", quantile(ours.prepare, 0.99), "ms", count),
        Figure(f"{about}: Prepare, times the do-nothing driver", prepared / least, "x", count, "<= 3 x"),
        Figure(f"{about}: Unprepare, p50", quantile(ours.unprepare, 0.5), "ms", count),
        Figure(f"{about}: Unprepare, of that the scrub, p50", quantile(ours.scrub, 0.5), "ms", count),
        Figure(f"{about}: Unprepare, all but the scrub, p50", quantile(rest, 0.5), "ms", count, "<= 50 ms"),
        Figure(f"{about}: Unprepare, all but the scrub, p99", quantile(rest, 0.99), "ms", count),
    ]


def _figures(written: int, seconds: float, resident: float) -> list[Figure]:
    about = f"autoclave dra, {GPUS} devices that all change"
    return [
        Figure(f"{about}: writes of the ResourceSlice", written / seconds, "a second", written, "<= 1"),
        Figure(f"{about}: resident memory afterwards", resident, "MiB", 1, "<= 65 MiB"),
    ]


# -- the calls of a kubelet


class Claims:
    """Claims in the API server, and the kubelet's calls for them."""

    def __init__(self, stub: Any, server: ApiServer) -> None:  # noqa: ANN401 - a generated stub
        self._stub = stub
        self._server = server
        self._made = 0

    async def in_turn(self, uuids: Sequence[str], rounds: int, stage: Stage | None = None) -> Times:
        """One claim after the other. The first one connects and does not count. ``stage``: who scrubs."""
        times = Times()
        for number in range(rounds + 1):
            await asyncio.sleep(SETTLES)
            claim = self._allocate(uuids[number % len(uuids)])
            began = time.perf_counter()
            await self.prepare(claim)
            prepared, since = time.perf_counter(), clock.now().uptime
            await self.unprepare(claim)
            times.prepare.append((prepared - began) * 1000)
            times.unprepare.append((time.perf_counter() - prepared) * 1000)
            if stage is not None:
                times.scrub.append(_scrub(stage, uuids[number % len(uuids)], since) * 1000)
        return Times(times.prepare[1:], times.unprepare[1:], times.scrub[1:])

    async def for_a_while(self, uuid: str, until: float) -> None:
        """Claim after claim on one device."""
        while time.perf_counter() < until:
            claim = self._allocate(uuid)
            await self.prepare(claim)
            await self.unprepare(claim)

    async def prepare(self, claim: wire.Claim) -> None:
        """Prepare one claim, or raise."""
        request = wire.NodePrepareResourcesRequest(claims=[claim])
        answer = (await self._stub.NodePrepareResources(request, timeout=WITHIN)).claims[claim.uid]
        if answer.error or not answer.devices:
            raise RuntimeError(f"a claim was not prepared: {answer.error}")

    async def unprepare(self, claim: wire.Claim) -> None:
        """Unprepare one claim, or raise."""
        request = wire.NodeUnprepareResourcesRequest(claims=[claim])
        answer = (await self._stub.NodeUnprepareResources(request, timeout=WITHIN)).claims[claim.uid]
        if answer.error:
            raise RuntimeError(f"a claim was not given back: {answer.error}")

    def _allocate(self, uuid: str) -> wire.Claim:
        self._made += 1
        name = f"claim-{self._made}"
        results = [{"driver": DRIVER, "pool": NODE, "request": "gpu", "device": uuid.lower()}]
        metadata = {"name": name, "namespace": "default", "uid": f"uid-{self._made}"}
        pod = {"resource": "pods", "name": f"pod-{self._made}", "uid": f"pod-{self._made}"}
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": [pod]}
        self._server.put(CLAIMS, {"kind": "ResourceClaim", "metadata": metadata, "status": status})
        return wire.Claim(namespace="default", name=name, uid=metadata["uid"])


def _scrub(stage: Stage, uuid: str, since: float) -> float:
    """The seconds of the scrub of this device since then."""
    with closing(database.connect(stage.ledger, "mode=ro")) as connection:
        rows = {
            row.kind: row.uptime for row in database.rows(connection, 1) if row.device == uuid and row.uptime > since
        }
    return rows["scrub-passed"] - rows["scrub-started"]


async def _busy(claims: Claims, server: ApiServer, stage: Stage, seconds: float) -> tuple[int, float]:
    """All devices change all the time: the number of slices that were written, and the seconds that it took."""
    before, began = _writes(server), time.perf_counter()
    await asyncio.gather(*(claims.for_a_while(uuid, began + seconds) for uuid in stage.uuids))
    return _writes(server) - before, time.perf_counter() - began


def _writes(server: ApiServer) -> int:
    return sum(request.about == "PATCH resourceslices" for request in server.requests)


# -- programs


@asynccontextmanager
async def _api_server(root: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(root, NODE)
    await server.open()
    try:
        yield server
    finally:
        await server.leave()


@asynccontextmanager
async def _process(*command: str, **env: str) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env={**os.environ, **env}, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


@asynccontextmanager
async def _claims(socket: Path, server: ApiServer) -> AsyncIterator[Claims]:
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        async with asyncio.timeout(WITHIN):
            await channel.channel_ready()
        yield Claims(dra_pb2_grpc.DRAPluginStub(channel), server)


@asynccontextmanager
async def _ours(stage: Stage, server: ApiServer) -> AsyncIterator[tuple[int, Claims]]:
    plugins, registry = stage.root / "plugins", stage.root / "registry"
    for directory in (plugins, registry):
        directory.mkdir()
    places = ("--run-dir", str(stage.root / "run"), "--plugins-dir", str(plugins), "--registry-dir", str(registry))
    program = ("-m", "autoclave", "dra", "--metrics-address", "127.0.0.1:0", *places)
    async with (
        Kubelet(stage.kubelet_dir, registry=registry, cluster=Cluster(server, NODE)) as kubelet,
        _process(*program, KUBECONFIG=str(server.kubeconfig), NODE_NAME=NODE) as pid,
    ):
        await kubelet.driver_registered(DRIVER)
        [socket] = (plugins / DRIVER).glob("dra-*.sock")
        async with _claims(socket, server) as claims:
            yield pid, claims
