"""Runs the work of a program until a signal stops it. Calls of the kubelet that have begun are answered first."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from plugin.in_flight import InFlight
from scrubber.ground import aio, log
from scrubber.ground.errors import FatalError

logger = log.get("app")

DRAINED_WITHIN = 6.0  # seconds for calls of the kubelet that are being answered at a stop: Allocate takes 5 at most


async def run(work: Coroutine[Any, Any, None], in_flight: InFlight) -> None:
    """Run until a signal arrives or the work fails; its error ends the program."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # There is no file to reload, and a restart would make the devices of the node unhealthy for a moment.
    aio.on_hangup(partial(logger.info, "SIGHUP is ignored: the plugin has nothing to reload"))
    task = asyncio.create_task(work, name="plugin")
    stopped = asyncio.create_task(stop.wait(), name="stop signal")
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        logger.info("stopping", calls=in_flight.calls)
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        await _finish(task)
    logger.info("stopped")


async def _finish(task: asyncio.Task[None]) -> None:
    """Raise the error of a task. Log a fault of the program with its traceback: nothing else records it."""
    try:
        await task
    except FatalError:
        raise
    except Exception as error:  # any fault ends the program, after it is logged
        rest = error.split(FatalError)[1] if isinstance(error, ExceptionGroup) else error
        if rest is not None:
            logger.exception("a fault inside the device plugin: it stops", exc_info=rest)
        raise


async def drain(in_flight: InFlight, within: float = DRAINED_WITHIN) -> None:
    """Wait until the calls of the kubelet that have begun are answered, at most ``within`` seconds."""
    if not await in_flight.none(within):
        logger.warning("calls of the kubelet are not answered: the plugin stops", calls=in_flight.calls)


@contextmanager
def one_fatal_error() -> Iterator[None]:
    """Turn a group of errors into the first FatalError in it: the program reports one line."""
    try:
        yield
    except BaseExceptionGroup as group:  # except* would raise a group again in some versions of Python
        fatal = group.subgroup(FatalError)
        if fatal is None:
            raise
        raise _first(fatal) from None


def _first(group: BaseExceptionGroup[FatalError]) -> FatalError:
    """The first error of a group; the user sees the next one at the next start."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
