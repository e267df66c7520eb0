"""The steps of one worker, as the service runs them: zygote, worker, messages. Only steps that need no setting.

This is a part of a whole job: it has no reset, no verdict, no record and no receipt.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import processes
from benchmarks.trial.card import Where, target
from benchmarks.trial.figures import Measured, NotDone, rounds
from benchmarks.trial.imports import pidfd_refused
from ground.documents import strict_json
from scrubber.core import model
from scrubber.core.model import Outcome, Step, StepResult
from scrubber.devices.base import Address
from scrubber.devices.nvidia.host import NAME
from scrubber.node import proc
from scrubber.steps.orders import Order
from scrubber.workers.pool import WorkerPool
from scrubber.workers.wire import Assignment

COLD_SHARE = 4  # warm workers for each cold zygote
DEADLINE = 60.0  # seconds of a step
STEPS = (Step.HEALTH, Step.CLEAR, Step.VERIFY, Step.SCRATCH)
PASSES = ("random", "zero")


def measure(where: Where) -> Iterator[Measured]:
    """Workers of new zygotes, then several workers of one zygote."""
    if where.limit is not None:
        raise NotDone("a worker takes all memory, which --limit forbids")
    if (refused := pidfd_refused()) is not None:
        raise NotDone(f"{refused}, so no zygote can hold a worker: what a worker takes is not known here")
    order = _assignment(where)
    yield from _figures("cold zygote", asyncio.run(_cold(order, where.rounds // COLD_SHARE, where.share(1 / 3))))
    yield from _figures("warm zygote", asyncio.run(_zygote(order, 1 + where.rounds, where.ends))[1:])


def _assignment(where: Where) -> Assignment:
    """The assignment as the service gives it, without settings."""
    return Assignment(
        Address(NAME, strict_json.encode(target(where)).decode()),
        (str(Path(where.root) / f"dev/nvidia{where.minor}"),),
        whole_node=True,
        service=where.holder or os.getpid(),
        pid_namespace=where.pid_namespace,
    )


async def _cold(assignment: Assignment, most: int, ends: float) -> list[dict[str, float]]:
    return [(await _zygote(assignment, 1, ends))[0] for _ in rounds(max(1, most), ends)]


async def _zygote(assignment: Assignment, most: int, ends: float) -> list[dict[str, float]]:
    """Several workers of one new zygote; the time of the first one includes the start of the zygote."""
    pool = WorkerPool(warm_cuda=True)
    began = time.perf_counter()
    try:
        await pool.start()
        found = [await _worker(pool, assignment) for _ in rounds(most, ends)]
    finally:
        await pool.close()
    for taking in ("spawn", "whole"):
        found[0][taking] += found[0]["begun"] - began
    return found


async def _worker(pool: WorkerPool, assignment: Assignment) -> dict[str, float]:
    found = {"begun": time.perf_counter()}
    worker = await pool.start_worker(assignment)
    found["spawn"] = time.perf_counter() - found["begun"]
    results = []
    try:
        for step in STEPS:
            began = time.perf_counter()
            results.append(_passed(await worker.do(step, model.ScrubPath.SLOW, _order(), DEADLINE, _unwatched)))
            found[step.value] = time.perf_counter() - began
        found |= _sizes(worker.pid)
    except BaseException:
        await worker.kill()
        raise
    began = time.perf_counter()
    _passed(await worker.finish(results[-1]))
    found["exit"] = time.perf_counter() - began
    found["whole"] = time.perf_counter() - found["begun"]
    return found


def _passed(result: StepResult) -> StepResult:
    if result.outcome is not Outcome.PASSED:
        raise RuntimeError(f"cannot measure: {result.step.value} {result.outcome.value}: {result.detail}")
    return result


def _order() -> Order:
    return Order(patterns=PASSES, key=secrets.token_hex(16))


def _unwatched(_done: int, _total: int) -> None:
    """Progress that is not reported."""


def _sizes(pid: int) -> dict[str, float]:
    zygote = proc.status(f"/proc/{pid}").parent
    return {"rss worker": float(processes.rss(pid)), "rss zygote": float(processes.rss(zygote))}


def _figures(zygote: str, workers: list[dict[str, float]]) -> list[Measured]:
    def of(what: str, key: str, unit: str = "ms", scale: float = 1000.0, note: str = "") -> Measured:
        return Measured(f"{zygote}: {what}", tuple(scale * life[key] for life in workers), unit, note)

    return [
        of("until there is a worker", "spawn"),
        of("its first answer", Step.HEALTH.value, note="the step health: the driver is asked, CUDA is not"),
        of("the step clear", Step.CLEAR.value, note=f"{'+'.join(PASSES)}, with context and allocations"),
        of("the step verify", Step.VERIFY.value),
        of("the step scratch", Step.SCRATCH.value),
        of("until the worker is gone", "exit", note="free all and exit"),
        of("from its request to its end", "whole", note=f"steps: {', '.join(it.value for it in STEPS)}"),
        of("resident memory of the worker", "rss worker", "MiB", 1 / 2**20),
        of("resident memory of the zygote", "rss zygote", "MiB", 1 / 2**20),
    ]
