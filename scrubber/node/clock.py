"""The one place that reads clocks for events."""

from __future__ import annotations

import time

from scrubber.core.model import Moment


def now() -> Moment:
    """This moment, for people and for arithmetic; uptime counts like process start times, through suspends too."""
    return Moment(wall=time.time(), uptime=time.clock_gettime(time.CLOCK_BOOTTIME))
