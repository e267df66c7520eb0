"""Helpers for tests of the listener: its threads, its calls to NVML, and its alarm."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from scrubber.devices.nvidia.health import listener

XID, RECOVERY = pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventTypeGpuRecoveryAction
FATAL = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 30 sourcetrack timeout error"
SOON = 30_000  # milliseconds; only a failing test waits this long


def ours() -> set[threading.Thread]:
    """All threads except the pooled threads of device calls."""
    return {thread for thread in threading.enumerate() if thread.name != "device-call"}


def thread(name: str) -> threading.Thread:
    """The running thread of this name."""
    return next(it for it in threading.enumerate() if it.name == name)


def until(true: Callable[[], object], what: str = "it did not come to that") -> None:
    """Wait until a condition is true."""
    ends = time.monotonic() + SOON / 1000
    while not true():
        assert time.monotonic() < ends, what
        time.sleep(0.004)


def asked(rig, name: str) -> list[str]:
    """The arguments of each call so far, without a line that is still being written."""
    *lines, _ = rig.machine.log.read_text().split("\n")
    return [about for _, call, about in (line.split(" ", 2) for line in lines) if call == name]


def calls(rig, name: str) -> int:
    return len(asked(rig, name))


def await_call(rig, name: str, times: int = 1) -> None:
    until(lambda: calls(rig, name) >= times, f"{name} was not called")


def await_more(rig, name: str, more: int) -> None:
    """Wait for this many further calls."""
    await_call(rig, name, calls(rig, name) + more)


@contextmanager
def stuck(rig) -> Iterator[Path]:
    """Make the event thread hang in NVML until the yielded file is removed.

    Stops the thread before its next wait, because a wait that has begun would still end.
    """
    arrived, go_on, wait = threading.Event(), threading.Event(), listener._event

    def met(events: object) -> object:
        arrived.set()
        assert go_on.wait(SOON / 1000)
        return wait(events)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "_event", met)
        assert arrived.wait(SOON / 1000)
    with rig.machine.hanging("nvmlEventSetWait_v2") as file:
        go_on.set()
        yield file


def uptime() -> float:
    """The time on a clock that stops during suspend, like the clock of kernel messages."""
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


def rings(backend, within: int = SOON) -> bool:
    poll = select.poll()
    poll.register(backend.alarm(), select.POLLIN)
    return bool(poll.poll(within))


def codes(backend, uuid: str) -> list[int]:
    return [xid.code for xid in backend.vitals(uuid).xids]


def await_code(backend, uuid: str, code: int) -> None:
    """Wait until the vitals have the XID, reading them only after an alarm."""
    while code not in codes(backend, uuid):
        assert rings(backend), f"XID {code} was not reported"
        backend.clear_alarm()
