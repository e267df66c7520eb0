"""Ctrl-C, SIGTERM and SIGHUP, heard only where nothing is half done: between two commands, and while one waits."""

from __future__ import annotations

import signal
import time
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SLICE = 0.1  # seconds until a signal is heard


class Interruption:
    """Notes a signal, and raises KeyboardInterrupt at the next check. A clean-up does not check."""

    def __init__(self) -> None:
        self.noted = False

    def listen(self) -> None:
        """From now on, a signal is noted and ends nothing."""
        for number in SIGNALS:
            signal.signal(number, self._note)

    def check(self) -> None:
        """KeyboardInterrupt if a signal has come."""
        if self.noted:
            raise KeyboardInterrupt

    def wait(self, seconds: float) -> None:
        """Wait so long, or until a signal comes."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, _SLICE))
        self.check()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.noted = True
