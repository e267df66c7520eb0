"""Each job logs one line at its end, with the reason. All other lines of a job are at level debug."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from scrubber.core.model import ScrubPath, Trigger
from scrubber.jobs.scrub_job import ScrubJob
from scrubber.workers.worker import BrokenError
from tests.service.pretend_worker import PretendWorker
from tests.service.world import World

Injects = Callable[[World, ScrubJob], Awaitable[None]]


class NoMore(PretendWorker):
    """No worker is to be had."""

    def __init__(self, *_: object) -> None:
        raise BrokenError("cannot start a worker")


class Broken(PretendWorker):
    """A fault of ours."""

    def __init__(self, *_: object) -> None:
        raise ZeroDivisionError


async def nothing(_world: World, _running: ScrubJob) -> None:
    """Let the job run to its end."""


async def at_once(world: World, running: ScrubJob) -> None:
    """Cancel the job before its first step."""
    await world.context.jobs.cancel(running.device)


async def on_the_way(world: World, running: ScrubJob) -> None:
    """Called off in the middle."""
    await asyncio.sleep(0.3)
    await world.context.jobs.cancel(running.device)


async def no_room(world: World, _running: ScrubJob) -> None:
    """The disk is full from the middle on."""
    await asyncio.sleep(0.3)
    world.life.disk.full = True


@pytest.mark.parametrize(
    ("worker", "injects", "outcome", "level", "more"),
    [
        (PretendWorker, nothing, "ok", "info", {"receipt", "seconds"}),
        (NoMore, nothing, "failed", "warning", {"why", "seconds"}),
        (PretendWorker, at_once, "cancelled", "warning", {"why", "seconds"}),
        (PretendWorker, on_the_way, "cancelled", "warning", {"why", "seconds"}),
        (PretendWorker, no_room, "unrecorded", "error", {"error", "seconds"}),
        (Broken, nothing, "fault", "error", {"exc_info", "seconds"}),
    ],
)
async def test_each_job_logs_one_line_at_its_end(
    build: Callable[..., World], worker: type[PretendWorker], injects: Injects, outcome: str, level: str, more: set[str]
) -> None:
    world = build(worker=worker, gpus=1)
    await world.start(watching=False)
    await asyncio.sleep(100)  # what the first look begins is over
    device = world.uuids[0]
    with capture_logs() as lines:
        running = await world.operator_requests.scrub(device, ScrubPath.SLOW, op="0b0b0b0b")
        await injects(world, running)
        await running.finished.wait()
    shown: list[Any] = [line for line in lines if line["log_level"] != "debug"]
    (end,) = shown
    wanted = {
        "event": "job ended", "outcome": outcome, "log_level": level, "op": "0b0b0b0b", "device": device,
        "job": running.id, "path": "slow", "trigger": "request", "state": world.state(device).value,
    }  # fmt: skip
    assert end | wanted == end
    assert end.keys() - wanted.keys() - {"room"} == more
    world.life.disk.full = False


async def test_a_job_cancelled_before_its_start_logs_its_end(world: World) -> None:
    device = world.uuids[0]
    device_policy = world.context.active_policy.device_policy(world.record(device).device)
    with capture_logs() as lines:
        # not by ``begin``: it comes back a turn later
        running = await world.context.jobs._start(
            device, ScrubPath.FAST, Trigger.REQUEST, device_policy, "0b0b0b0b", "ann"
        )
        await world.context.jobs.cancel(device)
    assert (running.progress.bytes_done, world.node.gpus[device].processes) == (0, {})
    shown = [(it["event"], it["outcome"], it["seconds"]) for it in lines if it["log_level"] != "debug"]
    assert shown == [("job ended", "cancelled", 0.0)]
