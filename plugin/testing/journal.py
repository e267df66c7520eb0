"""What happened: every call, start, registration; and waiting for it without polling.

A fault inside the stand-in itself is kept here and raised at the next thing the test does: it never passes unseen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from plugin.testing.runtime import Devices


class StandInFault(Exception):
    """The stand-in itself went wrong: nothing that the test saw can be trusted."""


@dataclass(slots=True)
class Call:
    """One call of the kubelet to a plugin, kept from its first moment on."""

    method: str
    resource: str
    ids: tuple[str, ...] = ()  # for GetPreferredAllocation: what is available
    must_include: tuple[str, ...] = ()
    size: int = 0
    deadline: float | None = None  # seconds that the plugin was given; None is for ever
    outcome: str = ""  # empty while it runs, then OK or the name of a gRPC status code
    message: str = ""
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """One container that really started."""

    pod: str  # its UID
    container: str
    devices: Devices
    prestart: bool  # whether PreStartContainer was called for it and said yes


@dataclass(frozen=True, slots=True)
class RegistrationCall:
    """One attempt of a plugin to register; no error means that it is registered."""

    resource: str
    endpoint: str
    error: str = ""


class Journal:
    """Outlives the kubelet's death, as the test's memory does."""

    def __init__(self) -> None:
        """Nothing has happened."""
        self.calls: list[Call] = []
        self.starts: list[Start] = []
        self.registrations: list[RegistrationCall] = []
        self.warnings: list[str] = []  # what the kubelet only logs
        self.faults: list[BaseException] = []
        self._waiters: set[asyncio.Event] = set()

    def begin(self, call: Call) -> Call:
        """The call goes out now."""
        self.calls.append(call)
        self.changed()
        return call

    def end(self, call: Call, outcome: str, message: str = "") -> None:
        """The call is answered, or given up."""
        call.seconds = time.monotonic() - call.began
        call.outcome, call.message = outcome, message
        self.changed()

    def add_start(self, start: Start) -> None:
        """A container runs."""
        self.starts.append(start)
        self.changed()

    def add_registration(self, registration: RegistrationCall) -> None:
        """A plugin came, welcome or not."""
        self.registrations.append(registration)
        self.changed()

    def warn(self, text: str) -> None:
        """The kubelet logs this and goes on."""
        self.warnings.append(text)
        self.changed()

    def changed(self) -> None:
        """Wake whoever waits for a change."""
        for waiter in self._waiters:
            waiter.set()

    def check(self) -> None:
        """Raise what went wrong in the background."""
        if self.faults:
            raise StandInFault(f"the kubelet stand-in failed: {self.faults[0]!r}") from self.faults[0]

    async def until(self, predicate: Callable[[], object], within: float | None) -> None:
        """Return when it holds; looked at after each change."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(within):
                while True:
                    waiter.clear()
                    self.check()
                    if predicate():
                        return
                    await waiter.wait()
        finally:
            self._waiters.discard(waiter)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run it in the background; its failure is a fault of the stand-in."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.faults.append(error)
            self.changed()
