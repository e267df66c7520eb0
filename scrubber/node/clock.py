"""The one place that reads clocks for events."""

from __future__ import annotations

import time

from scrubber.core.model import Moment


def now() -> Moment:
    """The current wall time and uptime. Uptime is on the clock of process start times and includes suspends."""
    return Moment(wall=time.time(), uptime=time.clock_gettime(time.CLOCK_BOOTTIME))
