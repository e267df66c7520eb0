"""A driver is blamed for the time in which this process could run, and for no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scrubber.devices import blocking_calls
from scrubber.devices.blocking_calls import LOOK_EVERY, Caller, ThreadTimes, UnresponsiveError, lost
from tests.patience import WITHIN

SECOND = 10**9  # ns
DEADLINE = 1.0
IS_ASKED = f"""
import asyncio, hashlib, os, signal, sys
from scrubber.devices.blocking_calls import Caller
from scrubber.devices.base import DeviceError

def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)
    signal.pause()

def starved():
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {{cpu}})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)

async def main():
    try:
        await Caller().ask("driver", globals()[sys.argv[1]], {DEADLINE})
    except DeviceError as error:
        print(type(error).__name__, flush=True)
        os._exit(0)

asyncio.run(main())
"""
IS_BUSY = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(flush=True)
while True: pass
"""


def started(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param(ThreadTimes(False, 5, 0), ThreadTimes(False, 5, 0), 0, id="it sleeps in the driver"),
        pytest.param(ThreadTimes(True, 5, 0), ThreadTimes(True, SECOND, 0), 0, id="it computes"),
        pytest.param(ThreadTimes(True, 5, 0), ThreadTimes(True, 5, 0), LOOK_EVERY, id="it gets no processor"),
        pytest.param(ThreadTimes(True, 5, 0), ThreadTimes(True, 9, SECOND // 8), 0.125, id="it got one late"),
        pytest.param(
            ThreadTimes(True, 5, 0), ThreadTimes(False, 9, 7 * SECOND), LOOK_EVERY, id="it got one after several looks"
        ),
    ],
)
def test_waits_for_a_processor_are_lost(before: ThreadTimes, now: ThreadTimes, expected: float) -> None:
    asleep = ThreadTimes(False, 1, 1)
    assert lost(LOOK_EVERY, {1: asleep, 2: before}, {1: asleep, 2: now, 3: now}) == expected


def test_a_late_look_is_lost_time_whatever_the_kernel_says() -> None:
    assert lost(10.0, {}, {}) == 10.0 - 2 * LOOK_EVERY


async def test_where_the_kernel_says_nothing_a_late_answer_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(blocking_calls, "_TASKS", Path("/nowhere"))
    with pytest.raises(UnresponsiveError):
        await Caller().ask("driver", gate.wait, 0.01)
    gate.set()


def test_a_stopped_service_blames_no_driver() -> None:
    """The question stops the whole service, as a freezer or a suspended machine does, until its answer is late."""
    asked = started(IS_ASKED, "stopped")
    assert os.waitid(os.P_PID, asked.pid, os.WSTOPPED) is not None
    time.sleep(2 * DEADLINE)
    asked.send_signal(signal.SIGCONT)
    assert asked.communicate(timeout=WITHIN)[0] == "ShortageError\n"


def test_a_thread_without_a_processor_blames_no_driver() -> None:
    """It computes at the lowest priority, on the processor that another program does not give away."""
    busy = started(IS_BUSY)
    try:
        assert busy.stdout is not None
        assert busy.stdout.readline() == "\n"
        assert started(IS_ASKED, "starved").communicate(timeout=WITHIN)[0] == "ShortageError\n"
    finally:
        busy.kill()
        busy.communicate()
