"""The record of every call, start and registration, and a way to wait for them without polling.

A fault inside the stand-in is kept here and raised by the next action of the test, so that no fault stays hidden.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from demo.standins.changes import Changes
from demo.standins.runtime import Devices


class StandInFault(Exception):
    """The stand-in itself has failed: the results of the test are not valid."""


@dataclass(slots=True)
class Call:
    """One call of the kubelet to a plugin, recorded from its start."""

    method: str
    resource: str
    ids: tuple[str, ...] = ()  # for GetPreferredAllocation: the available devices
    must_include: tuple[str, ...] = ()
    size: int = 0
    deadline: float | None = None  # seconds that the plugin has; None: no limit
    outcome: str = ""  # empty during the call, then OK or the name of a gRPC status code
    message: str = ""
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a container."""

    pod: str  # its UID
    container: str
    devices: Devices
    prestart: bool  # whether PreStartContainer was called and succeeded


@dataclass(frozen=True, slots=True)
class RegistrationCall:
    """One attempt of a plugin to register; without an error it is registered."""

    resource: str
    endpoint: str
    error: str = ""


class Journal(Changes):
    """The record of a test: it survives the end of a kubelet process."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.starts: list[Start] = []
        self.registrations: list[RegistrationCall] = []
        self.warnings: list[str] = []  # messages that the kubelet only logs
        self.faults: list[BaseException] = []

    def begin(self, call: Call) -> Call:
        """Record the start of a call."""
        self.calls.append(call)
        self.changed()
        return call

    def end(self, call: Call, outcome: str, message: str = "") -> None:
        """Record the end of a call."""
        call.seconds = time.monotonic() - call.began
        call.outcome, call.message = outcome, message
        self.changed()

    def add_start(self, start: Start) -> None:
        """Record the start of a container."""
        self.starts.append(start)
        self.changed()

    def add_registration(self, registration: RegistrationCall) -> None:
        """Record an attempt to register."""
        self.registrations.append(registration)
        self.changed()

    def warn(self, text: str) -> None:
        """Record a message that the kubelet only logs."""
        self.warnings.append(text)
        self.changed()

    def check(self) -> None:
        """Raise the first fault of a background task."""
        if self.faults:
            raise StandInFault(f"the kubelet stand-in failed: {self.faults[0]!r}") from self.faults[0]

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task in the background; its failure is a fault of the stand-in."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.faults.append(error)
            self.changed()
