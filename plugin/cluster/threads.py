"""An executor for DNS look-ups that does not delay the end of the program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class DaemonThreadExecutor(ThreadPoolExecutor):
    """An executor whose threads end with the process.

    The event loop resolves names in its executor. At the end the loop and the interpreter wait for a usual executor: a
    name server that does not answer would delay the end until the resolver gives up. Nothing else runs here.
    """

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run the function in its own daemon thread."""
        future: Future[R] = Future()
        threading.Thread(target=_run, args=(future, fn, args, kwargs), name="look-up", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - the base class has it
        """Wait for no thread."""


def _run(future: Future[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> None:  # noqa: ANN401 - of any function
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 - the future raises it
        future.set_exception(error)
