"""Processes on simulated GPUs that no kubelet started; they are ended after the test."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scrubber.devices.simulated import drills
from tests.patience import WITHIN


@dataclass(frozen=True)
class ForeignProcess:
    """Such a process."""

    pid: int
    handle: int

    def lives(self) -> bool:
        """Whether it still runs."""
        return not select.select([self.handle], [], [], 0)[0]


@contextmanager
def foreign_process(simulated: Path, uuid: str, container: str = "", secret: bytes = b"") -> Iterator[ForeignProcess]:
    """A process of this container, or of none."""
    use = partial(drills.occupy, container=container) if container else drills.zombie
    with ended(use(simulated, uuid, secret)) as process:
        yield process


@contextmanager
def ended(pid: int) -> Iterator[ForeignProcess]:
    """This process, which is ended after that."""
    handle = os.pidfd_open(pid)
    try:
        yield ForeignProcess(pid, handle)
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], WITHIN)
        os.close(handle)
