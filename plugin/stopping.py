"""Runs a program's tasks until a signal stops it.

Calls of the kubelet that have begun are answered first. Neither calls that take too long nor name look-ups delay the
end of the program.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from ground import aio, log, threads
from ground.aio import Changed
from ground.errors import FatalError

logger = log.get("plugin process")
P = ParamSpec("P")
R = TypeVar("R")

DRAINED_WITHIN = 6.0  # seconds for calls of the kubelet that are being answered at a stop: Allocate takes 5 at most
QUIET = 0.05  # seconds without a call before a stop: the kubelet asks for a preference, and then for the devices


class InFlight(Changed):
    """Counts the calls of the kubelet that are being answered: a plugin that stops answers them first."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self._begun = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a call as being answered while this context is open."""
        self.calls += 1
        self._begun += 1
        try:
            yield
        finally:
            self.calls -= 1
            self.notify()

    async def none(self, within: float) -> None:
        """Wait until no call is being answered, and none has come for a moment; at most ``within`` seconds.

        The kubelet ends all its calls when its list ends. A pod between two of them would fail.
        """
        begun = -1
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while begun != self._begun:
                    await self.until(lambda: self.calls == 0)
                    begun = self._begun
                    await asyncio.sleep(QUIET)


def run(work: Callable[[InFlight], Coroutine[Any, Any, None]]) -> int:
    """Run until a signal arrives or the work fails; its error ends the program. Returns 0.

    The work gets the count of the calls that are being answered.
    """
    if lack := threads.shortage():
        raise FatalError(f"cannot start: {lack[0]}", *lack[1:])
    with one_fatal_error():
        asyncio.run(_run(work, InFlight()))
    return 0


async def _run(work: Callable[[InFlight], Coroutine[Any, Any, None]], in_flight: InFlight) -> None:
    asyncio.get_running_loop().set_default_executor(DaemonThreadExecutor())
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # There is no file to reload, and a restart would make the devices of the node unhealthy for a moment.
    aio.on_hangup(partial(logger.info, "SIGHUP is ignored: the plugin has nothing to reload"))
    task = asyncio.create_task(work(in_flight), name="plugin")
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
    await in_flight.none(within)
    if in_flight.calls:
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


class DaemonThreadExecutor(ThreadPoolExecutor):
    """An executor whose threads end with the process.

    The event loop resolves names in its executor. At the end the loop and the interpreter wait for a usual executor: a
    name server that does not answer would delay the end until the resolver gives up. CDI files are checked here, too.
    """

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run the function in its own daemon thread."""
        future: Future[R] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - the future raises it
                future.set_exception(error)

        threading.Thread(target=run, name="look-up", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - the base class has it
        """Return without waiting for a thread."""
