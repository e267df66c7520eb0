"""Acquire on a CLEAN device, over the socket, with the durable ledger: how long, and does it depend on anything?

The baseline in the same run is a method that the server does not have: one gRPC round trip that does nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import grpc.aio

from benchmarks import rig
from benchmarks.figures import Figure, quantile
from demo.stage import Stage
from ground.quantities import quantity

AIM = "p50 <= 1.5 ms, flat"


async def measure(*, quick: bool) -> list[Figure]:
    """1 and 8 callers, 8 and 112 devices."""
    figures = []
    for gpus in (8,) if quick else (8, 112):
        async with rig.service(gpus) as stage:
            figures += await _baseline(stage, 200 if quick else 1000)
            for callers in (1, 8):
                rounds = 2 if quick else (30 if gpus == 8 else 4)  # noqa: PLR2004 - many devices, few rounds
                figures += await _acquire(stage, callers, rounds)
    return figures


async def _baseline(stage: Stage, count: int) -> list[Figure]:
    async with grpc.aio.insecure_channel(f"unix:{stage.root}/run/scrubber.sock") as channel:
        missing: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/autoclave.v1.Scrubber/Missing")

        async def ask() -> None:
            with suppress(grpc.aio.AioRpcError):
                await missing(b"")

        await ask()
        times = [await _timed(ask) for _ in range(count)]
    return _figures(f"a round trip that does nothing, {stage.gpus} devices", times, "")


async def _acquire(stage: Stage, callers: int, rounds: int) -> list[Figure]:
    """Every round acquires each device once, clean, then gives all back and waits until they are clean again."""
    times: list[float] = []
    async with stage.scrubber() as service:
        for _ in range(rounds):
            await rig.all_clean(stage)
            shares = [stage.uuids[caller::callers] for caller in range(callers)]
            results = await asyncio.gather(*(_one_caller(stage, share) for share in shares))
            times += [value for result in results for value in result]
            await service.release(stage.uuids)
    return _figures(f"Acquire on a CLEAN device, {quantity(callers, 'caller')}, {stage.gpus} devices", times, AIM)


async def _one_caller(stage: Stage, uuids: Sequence[str]) -> list[float]:
    async with stage.scrubber() as service:
        await service.release([uuids[0]])  # clean already: changes nothing, connects before the clock starts
        return [await _timed(partial(service.acquire, [uuid], announced=True)) for uuid in uuids]


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


def _figures(name: str, times: list[float], aim: str) -> list[Figure]:
    return [
        Figure(f"{name}: p50", quantile(times, 0.50), "ms", len(times), aim),
        Figure(f"{name}: p99", quantile(times, 0.99), "ms", len(times)),
    ]
