"""Look-ups of names that nobody waits for at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Forgetful(ThreadPoolExecutor):
    """An executor whose work ends with the process.

    The loop looks names up in its executor and waits for that when it ends, and so does the interpreter: a name server
    that is silent would hold up a stop for as long as the resolver likes to ask. Nothing else of the plugin runs here.
    """

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run it in a thread of its own, which keeps nobody alive."""
        future: Future[R] = Future()
        threading.Thread(target=_run, args=(future, fn, args, kwargs), name="look-up", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - the base's
        """There is nothing to wait for."""


def _run(future: Future[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> None:  # noqa: ANN401 - anybody's
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
        future.set_exception(error)
