"""Events and process start times are measured on the same clock."""

from __future__ import annotations

import os
import time
from pathlib import Path

from scrubber.node import clock


def test_both_clocks_are_read() -> None:
    before = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    moment = clock.now()
    after = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before[0] <= moment.wall <= after[0]
    assert before[1] <= moment.uptime <= after[1]


def test_uptime_is_later_than_the_start_of_this_process() -> None:
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    assert 0 < clock.now().uptime - started < 24 * 3600
