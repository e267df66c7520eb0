"""What the driver reports reaches the vitals through the kernel's log, or through NVML's events where there is no log.

Two threads listen: neither waits for the other, a stuck one is reported, and both end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pynvml
import pytest
from structlog.testing import capture_logs

from scrubber.core.model import AilmentKind, Vitals
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import nvml
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.nvidia.health import listener
from scrubber.devices.nvidia.health.xid_messages import GpuError
from scrubber.node.kernellog import KernelLog
from tests.devices.nvidia.health.events_seen import (
    FATAL,
    RECOVERY,
    XID,
    asked,
    await_call,
    await_code,
    await_more,
    calls,
    codes,
    rings,
    stuck,
    thread,
    until,
    uptime,
)
from tests.fakes.nvml.machine import Slice
from tests.patience import WITHIN

UNKNOWN = pynvml.NVML_ERROR_UNKNOWN


def test_old_kernel_errors_are_known_at_once(rig, kmsg, listen):
    kmsg.xid(rig.gpu(1).pci, 79, at=12.25)
    backend = listen()
    (xid,) = backend.vitals(rig.gpu(1).uuid).xids
    assert (xid.number, xid.code, xid.at) == (12_250_000, 79, 12.25)
    assert backend.vitals(rig.gpu(0).uuid) == Vitals()
    assert rings(backend)
    backend.clear_alarm()
    assert not rings(backend, 0)


def test_the_alarm_is_set_after_the_old_kernel_log(rig, kmsg):
    class Slow(KernelLog):
        def messages(self) -> Iterator[tuple[int, str]]:
            time.sleep(0.1)
            yield from super().messages()

    kmsg.xid(rig.gpu(1).pci, 79)
    backend = rig.backend(kernel=Slow(kmsg.path))
    assert rings(backend, 0)
    backend.close()


def test_a_slice_has_its_own_errors_and_its_gpus(rig, kmsg, listen):
    one, other = rig.cut(0, Slice("3g.71gb"), Slice("1g.18gb"))
    backend = listen(whole=lambda code: code == 95)
    first, _ = [backend._inventory.place_of(uuid)[1] for uuid in (one, other)]
    kmsg.xid(rig.gpu(0).pci, 31, about=f" GPU-I:{first:02} GPU-CI:00")
    kmsg.xid(rig.gpu(0).pci, 95, about=f" GPU-I:{first:02}")
    kmsg.xid(rig.gpu(0).pci, 62)
    await_code(backend, one, 62)  # and what the kernel has said before
    assert codes(backend, one) == [31, 95, 62]
    assert codes(backend, other) == [95, 62]


def test_nvmls_xid_of_a_slice_is_not_of_the_others(rig, listen):
    one, other = rig.cut(0, Slice("3g.71gb"), Slice("1g.18gb"))
    backend = listen(kernel=False, whole=lambda code: code == 95)
    rig.gpu(0).event(XID, 94, backend._inventory.place_of(one)[1])
    await_code(backend, one, 94)
    assert codes(backend, other) == []


def test_the_kernel_log_has_the_xids_of_a_lost_gpu(rig, kmsg, listen):
    backend = listen()
    rig.gpu(0).set(lost=True)
    kmsg.xid(rig.gpu(0).pci, 79, ", GPU has fallen off the bus.")
    assert rings(backend)
    found = backend.vitals(rig.gpu(0).uuid)
    assert (found.lost, [xid.code for xid in found.xids]) == (True, [79])


def test_a_lost_gpu_does_not_silence_the_others(rig, listen, monkeypatch):
    monkeypatch.setattr(listener, "FIRST_PAUSE", 0.01)
    backend = listen(kernel=False)
    rig.gpu(0).set(lost=True)
    await_call(rig, "nvmlEventSetCreate", 2)  # the wait has failed: there is a new set, without the lost one
    await_more(rig, "nvmlEventSetWait_v2", 1)
    rig.gpu(1).event(XID, 48)
    assert rings(backend)
    assert codes(backend, rig.gpu(1).uuid) == [48]


def test_listening_stops_while_the_driver_is_released_and_then_resumes(rig, kmsg, listen):
    backend = listen()
    backend.release_driver()
    assert rig.machine.clients() == ()
    assert calls(rig, "nvmlEventSetFree") == 1
    kmsg.xid(rig.gpu(1).pci, 62)
    assert rings(backend)
    backend.clear_alarm()
    waits = calls(rig, "nvmlEventSetWait_v2")
    backend.reacquire_driver()
    await_call(rig, "nvmlEventSetWait_v2", waits + 1)
    rig.gpu(2).event(RECOVERY)
    assert rings(backend)
    assert (codes(backend, rig.gpu(1).uuid), codes(backend, rig.gpu(2).uuid)) == ([62], [])


def test_a_missing_kernel_log_is_logged_and_nvml_counts(rig, listen):
    with capture_logs() as logs:
        backend = listen()
    (said,) = [line for line in logs if line["event"] == "cannot read the kernel's log"]
    assert said["error"].endswith("dev/kmsg: no such file or directory")
    rig.gpu(2).event(XID, 48)
    assert rings(backend)
    assert (codes(backend, rig.gpu(2).uuid), codes(backend, rig.gpu(1).uuid)) == ([48], [])


def test_the_kernel_logs_end_is_logged_and_nvml_counts(rig, kmsg, listen):
    backend = listen()
    kernel = thread("kernel-log")
    with capture_logs() as logs:
        kmsg.close()
        kernel.join(WITHIN)
    assert [line["event"] for line in logs] == ["cannot read the kernel's log any more"]
    rig.gpu(2).event(XID, 48)
    assert rings(backend)


def test_a_log_that_has_ended_already_delays_no_start(rig, kmsg, listen, monkeypatch):
    monkeypatch.setattr(listener, "CATCH_UP_SECONDS", 60.0)

    class Ended(KernelLog):
        def messages(self) -> Iterator[tuple[int, str]]:
            raise EOFError("it has come to its end")

    began = time.monotonic()
    backend = listen(kernel=Ended(kmsg.path))
    assert time.monotonic() - began < 30
    rig.gpu(2).event(XID, 48)
    assert rings(backend)


# --- a thread that is stuck, that waits, or that has ended ---


def test_a_hanging_nvml_wait_delays_nothing_but_resets(rig, kmsg, listen, monkeypatch):
    """It is logged once, prevents a reset, and does not keep the service from ending."""
    for module, name in ((listener, "JOIN_TIMEOUT"), (listener, "OVERDUE_SECONDS"), (nvml, "ANSWER_TIMEOUT")):
        monkeypatch.setattr(module, name, 0.05)
    backend = listen()
    uuid, warning = rig.gpu(1).uuid, "a listener thread does not return"
    with stuck(rig) as file, capture_logs() as logs:
        with pytest.raises(DeviceError, match=r"has not returned \(nvml-events\)"):
            backend.release_driver()
        rings(backend, 100)  # for longer than it may be silent
        for _ in range(2):
            backend.vitals(uuid)
        assert (warning, "nvml-events") in [(line["event"], line.get("thread")) for line in logs]
        assert len([line for line in logs if line.get("thread") == "nvml-events"]) == 1
        kmsg.xid(rig.gpu(1).pci, 79)
        assert rings(backend)
        left = thread("nvml-events")
        backend.close()
        file.unlink()
        left.join(WITHIN)
    assert logs[-1]["event"] == "a listener thread does not end: it is stuck in the driver"
    assert [xid.code for xid in backend.reported(uuid).xids] == [79]


class Clock:
    """Goes when a test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The one that a backend hears by."""
    clock = Clock()
    monkeypatch.setattr("scrubber.devices.nvidia.health.listener._steady", clock)
    return clock


@pytest.mark.usefixtures("kmsg")  # in which nothing is said
def test_a_thread_that_only_waits_does_not_count_as_hanging(rig, listen, monkeypatch, clock):
    monkeypatch.setattr(listener, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(listener, "FIRST_PAUSE", 3600.0)
    rig.machine.fail("nvmlEventSetWait_v2", UNKNOWN)
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


# --- one source or the other, and no XID is lost between them ---


def test_an_xid_from_both_sources_counts_once(rig, kmsg, listen, monkeypatch):
    """What the log may still bring is forgotten when the log was read to a later moment."""
    monkeypatch.setattr(listener, "APART", 0.0)
    monkeypatch.setattr(listener, "POLL_SECONDS", 3600.0)  # only a message wakes the thread
    backend = listen()
    reported = backend._listener._reported
    rig.gpu(1).event(XID, 79)
    until(lambda: reported)
    assert codes(backend, rig.gpu(1).uuid) == []
    kmsg.xid(rig.gpu(1).pci, 79, ", GPU has fallen off the bus.")
    until(lambda: not reported)
    assert [(xid.code, xid.pid) for xid in backend.vitals(rig.gpu(1).uuid).xids] == [(79, 4711)]
    kmsg.close()
    assert codes(backend, rig.gpu(1).uuid) == [79]


@pytest.fixture
def waiting(rig, kmsg, listen, monkeypatch) -> Nvidia:  # noqa: ARG001 - a log in which nothing is said
    """One that has heard XID 79 of the second GPU from NVML, and that the log was not read since."""
    monkeypatch.setattr(listener, "APART", 3600.0)
    monkeypatch.setattr(listener, "POLL_SECONDS", 3600.0)
    backend: Nvidia = listen()
    rig.gpu(1).event(XID, 79)
    await_more(rig, "nvmlEventSetWait_v2", 2)
    assert codes(backend, rig.gpu(1).uuid) == []
    assert not rings(backend, 0)
    return backend


def test_nvmls_reports_count_when_the_log_ends(rig, kmsg, waiting):
    """The log may not have had it; and the thread of NVML may be stuck by then."""
    with stuck(rig):
        kmsg.close()
        assert rings(waiting)
        assert [xid.code for xid in waiting.reported(rig.gpu(1).uuid).xids] == [79]


def test_nvmls_reports_count_when_the_log_thread_is_stuck(rig, clock, waiting):
    clock.now += listener.OVERDUE_SECONDS + 1
    assert [xid.code for xid in waiting.reported(rig.gpu(1).uuid).xids] == [79]
    assert rings(waiting, 0)


def test_nvmls_reports_count_when_messages_were_overwritten(rig, kmsg, waiting):
    """The XID may be among the lost messages, and NVML may tell of another one a moment later."""
    waiting._listener._kernel.overwritten += 1
    waiting._listener._drop_reported(uptime(), complete=False)
    assert codes(waiting, rig.gpu(1).uuid) == [79]
    rig.gpu(1).event(XID, 48)
    await_code(waiting, rig.gpu(1).uuid, 48)
    kmsg.say("nothing of importance")


def test_a_storm_that_nvml_reports_displaces_no_xid(rig, waiting):
    place = rig.gpu(1).pci.partition(".")[0]
    for _ in range(2 * listener.MOST_REPORTED):
        waiting._listener._received(GpuError(place, 13))
    assert {79, 13} == set(codes(waiting, rig.gpu(1).uuid))
    assert len(waiting._listener._reported) == listener.MOST_REPORTED


def test_an_event_after_the_end_sets_no_alarm(rig, waiting):
    waiting.close()
    place = rig.gpu(1).pci.partition(".")[0]
    waiting._listener._received(GpuError(place, 48))  # said just before the end, if the threads end in that order
    assert [xid.code for xid in waiting.reported(rig.gpu(1).uuid).xids] == [79, 48]


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


# --- NVML's events, whatever refuses or fails on the way ---


def test_a_changed_recovery_action_wakes_the_service(rig, listen):
    backend = listen(kernel=False)
    rig.gpu(2).set({"field.230": 1})
    rig.gpu(2).event(RECOVERY)
    assert rings(backend)
    assert backend.vitals(rig.gpu(2).uuid) == Vitals(reset_required=True)


def test_a_reopened_driver_is_listened_to_again(rig, listen):
    backend = listen(kernel=False)
    rig.library.renew()
    await_call(rig, "nvmlEventSetCreate", 2)
    await_more(rig, "nvmlEventSetWait_v2", 1)
    rig.gpu(2).event(XID, 48)
    assert rings(backend)
    assert calls(rig, "nvmlEventSetFree") == 1


def test_pauses_grow_to_thirty_seconds_and_start_over_after_success(rig, listen, monkeypatch):
    pauses, readable = list[float](), listener._readable

    def briefly(descriptor: int, within: float) -> bool:
        if within:
            pauses.append(within)
        return readable(descriptor, min(within, 0.002))

    monkeypatch.setattr(listener, "_readable", briefly)
    listen(kernel=False)
    with capture_logs() as logs:
        for _ in range(2):
            rig.machine.fail("nvmlEventSetWait_v2", UNKNOWN)
            until(lambda: len(pauses) >= 8)
            rig.machine.fail("nvmlEventSetWait_v2", None)
            await_more(rig, "nvmlEventSetWait_v2", 2)
            assert pauses[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
            pauses.clear()
    said = [(line["event"], line["still_read"]) for line in logs]
    assert said == [("cannot receive the driver's events", "nothing: no XID is seen")] * 2


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("nvmlDeviceGetCount_v2", UNKNOWN, "nvmlDeviceGetCount failed: Unknown Error"),
        ("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "the driver is not loaded"),
        ("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_NOT_SUPPORTED, "no GPU reports events"),
    ],
)
def test_an_event_set_without_its_gpus_is_not_used(rig, listen, monkeypatch, call: str, code: int, words: str):
    monkeypatch.setattr(listener, "FIRST_PAUSE", 0.005)
    monkeypatch.setattr(listener, "REFUSED_FOR", 0.0)
    backend = listen(kernel=False)
    rig.machine.fail(call, code)
    with capture_logs() as logs:
        rig.library.renew()
        await_call(rig, "nvmlEventSetCreate", 4)
    assert words in {line.get("error", "").rpartition("; ")[2] for line in logs}
    rig.machine.fail(call, None)
    await_more(rig, "nvmlEventSetWait_v2", 2)
    rig.gpu(1).event(XID, 79)
    assert rings(backend)


def test_an_event_set_that_cannot_be_freed_is_replaced(rig, listen, monkeypatch):
    monkeypatch.setattr(listener, "FIRST_PAUSE", 0.01)
    backend = listen(kernel=False)
    rig.machine.set({f"fail.nvmlEventSet{what}": pynvml.NVML_ERROR_UNKNOWN for what in ("Wait_v2", "Free")})
    await_call(rig, "nvmlEventSetFree", 3)
    rig.machine.set({f"fail.nvmlEventSet{what}": None for what in ("Wait_v2", "Free")})
    await_more(rig, "nvmlEventSetWait_v2", 2)
    rig.gpu(1).event(XID, 79)
    assert rings(backend)


def test_a_gpu_that_refuses_events_is_retried_alone(rig, listen, monkeypatch):
    monkeypatch.setattr(listener, "REFUSED_FOR", 0.0)
    rig.gpu(0).set(event_types=0)
    rig.gpu(1).fail("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with capture_logs() as logs:
        backend = listen(kernel=False)
        rig.gpu(2).event(XID, 48)
        assert rings(backend)
    refusals = [line["event"] for line in logs if line["event"].startswith("cannot receive the events of")]
    assert [text.partition(":")[0] for text in refusals] == [
        f"cannot receive the events of GPU {number}, only its kernel messages" for number in (0, 1)
    ]
    backend.clear_alarm()
    rig.gpu(1).fail("nvmlDeviceRegisterEvents", None)
    await_more(rig, "nvmlEventSetWait_v2", 2)
    rig.gpu(1).event(XID, 79)
    assert rings(backend)
    assert codes(backend, rig.gpu(1).uuid) == [79]
    assert sorted(Counter(asked(rig, "nvmlDeviceRegisterEvents")).values())[:-1] == [1] * (len(rig.machine.gpus) - 2)


# --- fatal errors of switches, on whatever clock the kernel tells the time ---


def test_a_fatal_switch_error_concerns_every_gpu_and_no_slice(rig, kmsg, listen, monkeypatch):
    (slice_,) = rig.cut(7, Slice("1g.18gb"))
    backend = listen()
    kmsg.say("nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 20009, Non-fatal, Link 04 RX Short Error Rate")
    kmsg.say(FATAL.replace("nvswitch3", "nvswitch5"))
    kmsg.say(FATAL)  # the last one counts
    assert rings(backend)
    for gpu in map(rig.gpu, range(7)):
        (sign,) = backend.vitals(gpu.uuid).signs
        expected = "nvswitch3 of this node: SXid 24007, Link 30 sourcetrack timeout error"
        assert (sign.kind, sign.detail) == (AilmentKind.SWITCH, expected)
        assert backend.reported(gpu.uuid) == Vitals(signs=(sign,), partial=True)
    assert (backend.vitals(slice_), backend.reported(slice_)) == (Vitals(), Vitals(partial=True))
    monkeypatch.setattr(listener, "FATAL_SECONDS", 0.0)
    assert backend.vitals(rig.gpu(0).uuid) == Vitals()


@pytest.fixture
def window(monkeypatch) -> float:
    """For how long a fatal error of a switch counts: so that this machine runs for longer than that already."""
    seconds = uptime() / 3
    monkeypatch.setattr(listener, "FATAL_SECONDS", seconds)
    return seconds


@pytest.mark.parametrize("windows", [2, -2], ids=["behind", "ahead"])
def test_a_switch_error_read_now_is_new_despite_clock_differences(rig, kmsg, listen, window, windows):
    backend = listen()
    kmsg.say(FATAL, at=uptime() - windows * window)
    assert rings(backend)
    assert [sign.kind for sign in backend.vitals(rig.gpu(0).uuid).signs] == [AilmentKind.SWITCH]
    kmsg.xid(rig.gpu(1).pci, 13)
    await_code(backend, rig.gpu(1).uuid, 13)
    assert backend.vitals(rig.gpu(0).uuid).signs  # by a message with another time it becomes no older


@pytest.mark.parametrize("windows", [0, 2])
def test_an_old_switch_error_keeps_the_time_of_its_message(rig, kmsg, listen, window, windows):
    kmsg.say(FATAL, at=uptime() - windows * window)
    kmsg.say("the newest", at=uptime())
    assert bool(listen().vitals(rig.gpu(0).uuid).signs) is not bool(windows)


@pytest.mark.parametrize("share", [0.5, -0.5], ids=["behind", "ahead"])
def test_an_event_from_nvml_alone_uses_the_kernels_clock(rig, kmsg, listen, share):
    """Else the old messages of a log that can be read after a restart would be news."""
    backend, place, ago = listen(), rig.gpu(1), share * uptime()
    before = uptime() - ago
    kmsg.xid(rig.gpu(2).pci, 13, at=before)
    await_code(backend, rig.gpu(2).uuid, 13)
    kmsg.close()
    place.event(XID, 79)
    await_code(backend, place.uuid, 79)
    after = uptime() - ago
    (xid,) = backend.vitals(place.uuid).xids
    assert before <= xid.at <= after
    assert xid.number == round(xid.at * 1e6)
