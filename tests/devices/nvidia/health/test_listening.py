"""The two threads that listen: neither waits for the other, both are missed when stuck, and both end."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pynvml
import pytest
from structlog.testing import capture_logs

from scrubber.core.model import Vitals
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import nvml
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.nvidia.health import listener, xid_log
from scrubber.devices.nvidia.health.kernel_messages import GpuError
from scrubber.node.kernellog import KernelLog
from tests.devices.nvidia.health.events_seen import XID, await_more, codes, rings, stuck, thread, until


def test_a_hanging_nvml_wait_delays_neither_kernel_log_nor_stop(rig, kmsg, listen, monkeypatch):
    monkeypatch.setattr(listener, "JOIN_TIMEOUT", 0.05)
    backend = listen()
    with stuck(rig) as file:
        kmsg.xid(rig.gpu(1).pci, 79)
        assert rings(backend)
        left = thread("nvml-events")
        with capture_logs() as logs:
            backend.close()
        assert [line["event"] for line in logs] == ["a listener thread does not end: it is stuck in the driver"]
        file.unlink()
        left.join(30)


def test_a_hanging_thread_is_logged_once_and_blocks_a_reset(rig, listen, monkeypatch):
    for module, name in ((listener, "JOIN_TIMEOUT"), (listener, "OVERDUE_SECONDS"), (nvml, "ANSWER_TIMEOUT")):
        monkeypatch.setattr(module, name, 0.05)
    backend = listen(kernel=False)
    uuid, warning = rig.gpu(0).uuid, "a listener thread does not return"
    with stuck(rig) as file, capture_logs() as logs:
        with pytest.raises(DeviceError, match=r"has not returned \(nvml-events\)"):
            backend.release_driver()
        rings(backend, 100)  # for longer than it may be silent
        for _ in range(2):
            backend.vitals(uuid)
        assert [(line["event"], line["thread"]) for line in logs] == [(warning, "nvml-events")]
        left = thread("nvml-events")
        backend.close()
        file.unlink()
        left.join(30)
        assert backend.reported(uuid) == Vitals(partial=True)
    assert [line["event"] for line in logs] == [warning, "a listener thread does not end: it is stuck in the driver"]


class Clock:
    """Goes when a test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The one that a backend hears by."""
    clock = Clock()
    monkeypatch.setattr("scrubber.devices.nvidia.backend._steady", clock)
    return clock


@pytest.mark.usefixtures("kmsg")  # in which nothing is said
def test_a_thread_that_only_waits_does_not_count_as_hanging(rig, listen, monkeypatch, clock):
    monkeypatch.setattr(listener, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(listener, "FIRST_PAUSE", 3600.0)
    rig.machine.fail("nvmlEventSetWait_v2", pynvml.NVML_ERROR_UNKNOWN)
    backend = listen()
    due, silent = backend._listener._due, listener.OVERDUE_SECONDS
    until(lambda: due["nvml-events"] == clock.now + 3600.0 + silent)  # it is in its pause
    with capture_logs() as logs:
        for _ in range(4):
            clock.now += silent / 2
            until(lambda: due["kernel-log"] == clock.now + silent)
            backend.reported(rig.gpu(0).uuid)
    assert logs == []


def test_threads_that_have_ended_are_not_missed(rig, kmsg, listen, monkeypatch):
    backend = listen()
    kernel, missed = thread("kernel-log"), list[list[str]]()
    monkeypatch.setattr(listener, "OVERDUE_SECONDS", -3600.0)  # who is there, is late
    kmsg.close()
    kernel.join(30)
    await_more(rig, "nvmlEventSetWait_v2", 2)
    for end in (lambda: None, backend.close):
        end()
        backend._listener._overdue.clear()
        with capture_logs() as logs:
            backend.reported(rig.gpu(0).uuid)
        missed.append([line["thread"] for line in logs])
    assert missed == [["nvml-events"], []]


@pytest.fixture
def waiting(rig, kmsg, listen, monkeypatch) -> Nvidia:  # noqa: ARG001 - a log in which nothing is said
    """One that has heard XID 79 of the second GPU from NVML, and waits for the kernel's word."""
    monkeypatch.setattr(xid_log, "GRACE", 3600.0)
    backend: Nvidia = listen()
    rig.gpu(1).event(XID, 79)
    await_more(rig, "nvmlEventSetWait_v2", 2)
    assert codes(backend, rig.gpu(1).uuid) == []
    return backend


def test_events_read_before_a_hang_are_reported_with_an_alarm(rig, waiting, monkeypatch):
    with stuck(rig):
        monkeypatch.setattr(xid_log, "GRACE", 0.0)
        assert not rings(waiting, 0)
        assert [xid.code for xid in waiting.reported(rig.gpu(1).uuid).xids] == [79]
        assert rings(waiting, 0)


def test_an_event_confirmed_after_the_end_sets_no_alarm(rig, waiting):
    waiting.close()
    place = rig.gpu(1).pci.partition(".")[0]
    waiting._listener._received(GpuError(place, 48))  # said just before the end, if the threads end in that order
    assert [xid.code for xid in waiting.reported(rig.gpu(1).uuid).xids] == [79, 48]


def test_events_set_the_alarm_even_while_waiting_fails(rig, waiting, monkeypatch):
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE"):
        monkeypatch.setattr(listener, name, 0.01)
    rig.machine.fail("nvmlEventSetWait_v2", pynvml.NVML_ERROR_UNKNOWN)
    await_more(rig, "nvmlEventSetWait_v2", 2)
    assert not rings(waiting, 0)
    monkeypatch.setattr(xid_log, "GRACE", 0.0)
    assert rings(waiting)


def files() -> Counter[str]:
    """What this process has open."""
    found: Counter[str] = Counter()
    for entry in [*Path("/proc/self/fd").iterdir()]:
        with suppress(FileNotFoundError):  # the folder itself
            found[str(entry.readlink())] += 1
    return found


def test_threads_listen_only_between_alarm_and_end(rig, kmsg, listen):
    before = files()
    quiet = rig.backend(kernel=KernelLog(kmsg.path))
    quiet.inventory()
    quiet.clear_alarm()
    quiet.close()
    assert quiet.vitals(rig.gpu(0).uuid) == Vitals()
    rig.library.close()
    backend = listen()
    assert backend.alarm() == backend.alarm()
    backend.close()
    backend.close()
    rig.library.close()
    assert not files() - before
