"""How long no service answers: while an update replaces it, with the next one on standby, and in a plain restart.

The plugin is there, because its open stream is a call that the old service must end first. "Answer" is one that a new
caller gets: the callers that wait try again within 0.3 s.
"""

from __future__ import annotations

import asyncio
import signal
import time

from benchmarks import rig
from benchmarks.figures import Figure, quantile
from demo.programs import ServiceProgram
from demo.stage import Stage
from ground.errors import AutoclaveError
from scrub_api import views

GPUS = 8
TRIED_EVERY = 0.002  # seconds


async def measure(*, quick: bool) -> list[Figure]:
    """Replace the service several times in each way."""
    turns = 2 if quick else 11
    figures = []
    async with rig.service(GPUS) as stage:
        await stage.start_node()
        arguments = stage.service.arguments
        for name, standby, aim in (("an update, the next one on standby", True, "< 1 s"), ("a restart", False, "")):
            seconds = [await _absence(stage, arguments, standby=standby) for _ in range(turns)]
            what = f"no service answers in {name}, {GPUS} devices"
            figures += [
                Figure(f"{what}: median", quantile(seconds, 0.5), "s", turns, aim),
                Figure(f"{what}: the longest", max(seconds), "s", turns, aim),
            ]
    return figures


async def _absence(stage: Stage, arguments: tuple[str, ...], *, standby: bool) -> float:
    """Seconds from the last answer of the service to the first answer of the next one.

    With nobody to wait for, ``--standby`` changes nothing.
    """
    await rig.all_clean(stage)
    old, after = stage.service, ServiceProgram((*arguments, "--standby"), stage.root / "service.log")
    first = await _answer(stage)
    answers = asyncio.create_task(_until_next(stage, first.service.started))
    if standby:
        waits = _waits(stage)
        await after.start()
        while _waits(stage) == waits:  # noqa: ASYNC110 - a line in a file is no event
            await asyncio.sleep(TRIED_EVERY)
        await old.end(signal.SIGTERM)
    else:
        await old.end(signal.SIGTERM)
        await after.start()
    stage.service = after
    return await answers


def _waits(stage: Stage) -> int:
    return stage.service.log.read_text().count('"zygote ready"')


async def _until_next(stage: Stage, started: float) -> float:
    last = time.perf_counter()
    while True:
        try:
            answer = await _answer(stage)
        except AutoclaveError:
            await asyncio.sleep(TRIED_EVERY)
            continue
        now = time.perf_counter()
        if answer.service.started != started:
            return now - last
        last = now


async def _answer(stage: Stage) -> views.Status:
    async with stage.admin() as admin:
        return await admin.status()
