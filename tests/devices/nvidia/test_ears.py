"""What the driver says unasked reaches the vitals: by the kernel's log, and by the events of a real pynvml.

Over 400 lines, because both sources are tried on the same pretend node, which takes a page to set up.
"""

from __future__ import annotations

import fcntl
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
from structlog.testing import capture_logs

from scrubber.core.model import Ailment, Vitals
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import ears, happenings, library
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.node.kernellog import KernelLog
from scrubber.node.processes import Processes
from scrubber.sight import Sight
from tests.devices.nvidia.bench import lock
from tests.fakes.kmsg import USER, Kmsg
from tests.fakes.nvml.machine import Slice

XID, RECOVERY = pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventTypeGpuRecoveryAction
FATAL = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 30 sourcetrack timeout error"
SOON = 5000  # milliseconds for what takes some


@pytest.fixture(autouse=True)
def _brief(monkeypatch) -> None:
    """NVML is waited for in shorter turns, so that tests end sooner."""
    monkeypatch.setattr(happenings, "WAIT_MS", 40)


@pytest.fixture
def kmsg(rig) -> Iterator[Kmsg]:
    made = Kmsg(rig.host.dev / "kmsg")
    yield made
    made.close()


@pytest.fixture
def listen(rig) -> Iterator[Callable[..., Nvidia]]:
    """A backend that listens, and is known to be in NVML's wait; ended with the test, and no thread left of it."""
    before = ours()
    made = []

    def begin(*, kernel: bool = True, **more) -> Nvidia:
        if kernel:
            more["kernel"] = KernelLog(rig.host.dev / "kmsg")
        backend: Nvidia = rig.backend(**more)
        backend.inventory()
        made.append(backend)
        backend.alarm()
        await_call(rig, "nvmlEventSetWait_v2")
        return backend

    yield begin
    for backend in made:
        backend.close()
    assert ours() <= before


def ours() -> set[threading.Thread]:
    """All but those that are kept for the next question to a driver."""
    return {thread for thread in threading.enumerate() if thread.name != "device-call"}


def calls(rig, name: str) -> int:
    return [call for _, call, _ in rig.machine.calls()].count(name)


def await_call(rig, name: str, times: int = 1) -> None:
    ends = time.monotonic() + SOON / 1000
    while calls(rig, name) < times:
        assert time.monotonic() < ends, f"{name} was not called"
        time.sleep(0.002)


def uptime() -> float:
    """On a clock that stands still while the machine is suspended, as that of the kernel's messages."""
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


def rings(backend, within: int = SOON) -> bool:
    poll = select.poll()
    poll.register(backend.alarm(), select.POLLIN)
    return bool(poll.poll(within))


def codes(backend, uuid: str) -> list[int]:
    return [xid.code for xid in backend.vitals(uuid).xids]


def test_what_the_kernel_remembers_is_known_at_once(rig, kmsg, listen):
    kmsg.xid(rig.gpu(1).pci, 79, at=12.25)
    backend = listen()
    (xid,) = backend.vitals(rig.gpu(1).uuid).xids
    assert (xid.number, xid.code, xid.at) == (12_250_000, 79, 12.25)
    assert backend.vitals(rig.gpu(0).uuid) == Vitals()
    assert rings(backend)
    backend.hush()
    assert not rings(backend, 0)


def test_the_alarm_is_set_when_all_that_the_kernel_remembers_was_read(rig, kmsg):
    class Slow(KernelLog):
        def messages(self) -> Iterator[tuple[int, str]]:
            time.sleep(0.1)
            yield from super().messages()

    kmsg.xid(rig.gpu(1).pci, 79)
    backend = rig.backend(kernel=Slow(kmsg.path))
    assert rings(backend, 0)
    backend.close()


def test_an_error_that_is_logged_now_rings_and_is_in_the_vitals(rig, kmsg, listen):
    backend = listen()
    assert not rings(backend, 0)
    kmsg.xid(rig.gpu(3).pci, 154, ", GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    assert rings(backend)
    (xid,) = backend.vitals(rig.gpu(3).uuid).xids
    assert (xid.code, xid.action) == (154, "reset_gpu")


def test_a_program_cannot_make_a_gpu_sick(rig, kmsg, listen):
    backend = listen()
    kmsg.say(f"NVRM: Xid (PCI:{rig.gpu(0).pci[:-2]}): 79, pid=1, name=x, GPU has fallen off the bus.", facility=USER)
    kmsg.xid(rig.gpu(1).pci, 13, f"): 79, NVRM: Xid (PCI:{rig.gpu(0).pci[:-2]}): 79, ")
    assert rings(backend)
    assert (codes(backend, rig.gpu(0).uuid), codes(backend, rig.gpu(1).uuid)) == ([], [13])


def test_an_event_of_nvml_rings_and_is_in_the_vitals(rig, listen):
    backend = listen(kernel=False)
    rig.gpu(2).event(XID, 48)
    assert rings(backend)
    assert codes(backend, rig.gpu(2).uuid) == [48]
    assert codes(backend, rig.gpu(1).uuid) == []


def test_an_event_that_both_sources_tell_is_one(rig, kmsg, listen):
    backend = listen()
    rig.gpu(2).event(XID, 79)
    kmsg.xid(rig.gpu(2).pci, 79)
    rig.gpu(1).event(XID, 48)  # told after the other: when it is known, so is everything before it
    while not codes(backend, rig.gpu(1).uuid):
        assert rings(backend)
        backend.hush()
    assert codes(backend, rig.gpu(2).uuid) == [79]


def test_a_wish_for_another_recovery_rings(rig, listen):
    backend = listen(kernel=False)
    rig.gpu(2).set({"field.230": 1})
    rig.gpu(2).event(RECOVERY)
    assert rings(backend)
    assert backend.vitals(rig.gpu(2).uuid) == Vitals(reset_required=True)


def test_a_slice_bears_what_names_it_and_what_concerns_its_whole_gpu(rig, kmsg, listen):
    one, other = rig.cut(0, Slice("3g.71gb"), Slice("1g.18gb"))
    backend = listen(whole=lambda code: code == 95)
    first, _ = [backend._inventory.place_of(uuid)[1] for uuid in (one, other)]
    kmsg.xid(rig.gpu(0).pci, 31, about=f" GPU-I:{first:02} GPU-CI:00")
    kmsg.xid(rig.gpu(0).pci, 95, about=f" GPU-I:{first:02}")
    kmsg.xid(rig.gpu(0).pci, 62)
    rig.gpu(0).event(XID, 94, first)
    while 94 not in codes(backend, one):
        assert rings(backend)
        backend.hush()
    assert codes(backend, one) == [31, 95, 62, 94]
    assert codes(backend, other) == [95, 62]


def test_a_lost_gpu_goes_on_being_told_of_and_the_others_are_heard(rig, kmsg, listen, monkeypatch):
    monkeypatch.setattr(ears, "FIRST_PAUSE", 0.01)
    backend = listen()
    rig.gpu(0).set(lost=True)
    kmsg.xid(rig.gpu(0).pci, 79, ", GPU has fallen off the bus.")
    assert rings(backend)
    found = backend.vitals(rig.gpu(0).uuid)
    assert (found.lost, [xid.code for xid in found.xids]) == (True, [79])
    await_call(rig, "nvmlEventSetCreate", 2)  # the wait has failed: there is a new set, without the lost one
    await_call(rig, "nvmlEventSetWait_v2", calls(rig, "nvmlEventSetWait_v2") + 1)
    backend.hush()
    rig.gpu(1).event(XID, 48)
    assert rings(backend)
    assert codes(backend, rig.gpu(1).uuid) == [48]


def test_a_fatal_error_of_a_switch_is_every_gpus_and_no_slices_and_passes(rig, kmsg, listen, monkeypatch):
    (slice_,) = rig.cut(7, Slice("1g.18gb"))
    backend = listen()
    kmsg.say("nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 20009, Non-fatal, Link 04 RX Short Error Rate")
    kmsg.say(FATAL)
    assert rings(backend)
    for gpu in map(rig.gpu, range(7)):
        (sign,) = backend.vitals(gpu.uuid).signs
        told = "nvswitch3 of this node: SXid 24007, Link 30 sourcetrack timeout error"
        assert (sign.ailment, sign.detail) == (Ailment.SWITCH, told)
        assert backend.heard(gpu.uuid) == Vitals(signs=(sign,), partial=True)
    assert (backend.vitals(slice_), backend.heard(slice_)) == (Vitals(), Vitals(partial=True))
    monkeypatch.setattr(ears, "FATAL_FOR", 0.0)
    assert backend.vitals(rig.gpu(0).uuid) == Vitals()


@pytest.fixture
def window(monkeypatch) -> float:
    """For how long a fatal error of a switch counts: so that this machine runs for longer than that already."""
    seconds = uptime() / 3
    monkeypatch.setattr(ears, "FATAL_FOR", seconds)
    return seconds


@pytest.mark.parametrize("windows", [2, -2], ids=["behind", "ahead"])
def test_an_error_of_a_switch_that_is_heard_now_is_new_whatever_the_kernels_clock_says(
    rig, kmsg, listen, window, windows
):
    backend = listen()
    kmsg.say(FATAL, at=uptime() - windows * window)
    assert rings(backend)
    assert [sign.ailment for sign in backend.vitals(rig.gpu(0).uuid).signs] == [Ailment.SWITCH]
    kmsg.xid(rig.gpu(1).pci, 13)
    while not codes(backend, rig.gpu(1).uuid):
        assert rings(backend)
        backend.hush()
    assert backend.vitals(rig.gpu(0).uuid).signs  # by a message with another time it becomes no older


@pytest.mark.parametrize("windows", [0, 2])
def test_an_error_of_a_switch_that_the_kernel_remembers_is_as_old_as_it_says(rig, kmsg, listen, window, windows):
    kmsg.say(FATAL, at=uptime() - windows * window)
    kmsg.say("the newest", at=uptime())
    assert bool(listen().vitals(rig.gpu(0).uuid).signs) is not bool(windows)


@pytest.mark.parametrize("share", [0.5, -0.5], ids=["behind", "ahead"])
def test_an_event_of_nvml_alone_is_numbered_on_the_kernels_clock(rig, kmsg, listen, share):
    """Else the kernel's next word, or its old ones after a restart, would be older than what was judged, or be news."""
    backend, place, ago = listen(), rig.gpu(1), share * uptime()
    before = uptime() - ago
    kmsg.xid(rig.gpu(2).pci, 13, at=before)
    while not codes(backend, rig.gpu(2).uuid):
        assert rings(backend)
        backend.hush()
    place.event(XID, 79)
    while not codes(backend, place.uuid):
        assert rings(backend)
        backend.hush()
    after = uptime() - ago
    (xid,) = backend.vitals(place.uuid).xids
    assert before <= xid.at <= after
    assert xid.number == int(xid.at * 1e6)


def test_while_the_driver_is_let_go_nothing_of_ours_is_on_it_and_then_it_is_heard_again(rig, kmsg, listen):
    backend = listen()
    backend.let_go()
    assert rig.machine.clients() == ()
    assert calls(rig, "nvmlEventSetFree") == 1
    kmsg.xid(rig.gpu(1).pci, 62)
    assert rings(backend)
    backend.hush()
    waits = calls(rig, "nvmlEventSetWait_v2")
    backend.take_up()
    await_call(rig, "nvmlEventSetWait_v2", waits + 1)
    rig.gpu(2).event(XID, 48)
    assert rings(backend)
    assert (codes(backend, rig.gpu(1).uuid), codes(backend, rig.gpu(2).uuid)) == ([62], [48])


@pytest.fixture
def watch(rig, kmsg, listen, tmp_path) -> Callable[..., Sight]:
    """The eyes of a service whose second GPU has just fallen off its bus, as the kernel says it."""

    def begin(patience: float = 5.0) -> Sight:
        backend = listen()
        kmsg.xid(rig.gpu(1).pci, 79, ", GPU has fallen off the bus.")
        assert rings(backend)
        processes = Processes(Path("/proc"), backend.container_of, full_sight=False)
        return Sight(backend, processes, "boot", tmp_path, 0.0, patience=patience)

    return begin


async def test_while_another_one_is_reset_an_error_is_known_at_once_and_that_it_is_well_is_not(rig, watch):
    sight = watch()
    well, sick = rig.gpu(0).uuid, rig.gpu(1).uuid
    async with sight.away(rig.gpu(2).uuid):
        found = await sight.vitals(sick)
        assert (found.partial, [xid.code for xid in found.xids]) == (True, [79])
        assert await sight.vitals(well) == Vitals(partial=True)
    await sight.back()
    assert await sight.vitals(well) == Vitals()
    assert not (await sight.vitals(sick)).partial


async def test_what_is_reset_itself_says_what_is_no_news(rig, watch):
    sight, sick = watch(), rig.gpu(1).uuid
    async with sight.away(sick):
        assert await sight.vitals(sick) is None
    await sight.back()
    lock(rig, 1).parent.mkdir(parents=True)
    with lock(rig, 1).open("w") as held:  # a tool that outlived its worker
        fcntl.flock(held, fcntl.LOCK_EX)
        async with sight.away(rig.gpu(2).uuid):
            assert await sight.vitals(sick) is None
        assert await sight.vitals(sick) is None
    await sight.back()


async def test_a_driver_that_hangs_keeps_no_error_to_itself(rig, watch):
    sight, sick = watch(patience=0.5), rig.gpu(1).uuid
    with rig.machine.hanging("nvmlDeviceGetTotalEccErrors") as file:
        first, second = [await sight.vitals(sick) for _ in range(2)]
        file.unlink()
    assert (first.partial, first.unresponsive, [xid.code for xid in first.xids]) == (True, False, [79])
    assert (second.partial, second.unresponsive, [xid.code for xid in second.xids]) == (False, True, [79])


def test_it_lets_go_at_once_however_often(rig, listen):
    backend = listen(kernel=False)
    for _ in range(5):
        began = time.monotonic()
        backend.let_go()
        assert rig.machine.clients() == ()
        assert time.monotonic() - began < 1.5
        backend.take_up()


def test_a_driver_that_is_opened_anew_is_listened_to_anew(rig, listen):
    backend = listen(kernel=False)
    rig.library.renew()
    await_call(rig, "nvmlEventSetCreate", 2)
    await_call(rig, "nvmlEventSetWait_v2", calls(rig, "nvmlEventSetWait_v2") + 1)
    rig.gpu(2).event(XID, 48)
    assert rings(backend)
    assert calls(rig, "nvmlEventSetFree") == 1


def test_waiting_that_fails_at_once_is_tried_ever_more_seldom_and_told_once(rig, listen, monkeypatch):
    monkeypatch.setattr(ears, "FIRST_PAUSE", 0.02)
    rig.machine.fail("nvmlEventSetWait_v2", pynvml.NVML_ERROR_UNKNOWN)
    with capture_logs() as logs:
        backend = listen(kernel=False)
        began = time.monotonic()
        await_call(rig, "nvmlEventSetWait_v2", 6)
        assert not rings(backend, 0)
    assert time.monotonic() - began > 0.04 + 0.08 + 0.16 + 0.32  # the first pause may have begun before
    assert len([line for line in logs if line["event"].startswith("cannot hear the driver's events")]) == 1
    assert calls(rig, "nvmlEventSetFree") >= 5


def test_errors_that_take_turns_are_told_once_each(rig, listen, monkeypatch):
    monkeypatch.setattr(ears, "FIRST_PAUSE", 0.005)
    monkeypatch.setattr(ears, "LONGEST_PAUSE", 0.005)
    listen(kernel=False)
    with capture_logs() as logs:
        for code in (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_MEMORY) * 3:
            rig.machine.fail("nvmlEventSetWait_v2", code)
            await_call(rig, "nvmlEventSetWait_v2", calls(rig, "nvmlEventSetWait_v2") + 3)
    assert [line["event"].partition(";")[0] for line in logs] == ["cannot hear the driver's events"] * 2


def test_a_set_that_was_not_made_whole_is_no_set(rig, listen, monkeypatch):
    monkeypatch.setattr(ears, "FIRST_PAUSE", 0.005)
    listen(kernel=False)
    rig.machine.fail("nvmlDeviceGetCount_v2", pynvml.NVML_ERROR_UNKNOWN)
    with capture_logs() as logs:
        rig.library.renew()
        await_call(rig, "nvmlEventSetCreate", 4)
    assert {line["error"] for line in logs} == {"nvmlDeviceGetCount failed: Unknown Error"}


def test_a_set_that_cannot_be_freed_is_given_up_for_a_new_one(rig, listen, monkeypatch):
    monkeypatch.setattr(ears, "FIRST_PAUSE", 0.01)
    backend = listen(kernel=False)
    rig.machine.set({f"fail.nvmlEventSet{what}": pynvml.NVML_ERROR_UNKNOWN for what in ("Wait_v2", "Free")})
    await_call(rig, "nvmlEventSetFree", 3)
    rig.machine.set({f"fail.nvmlEventSet{what}": None for what in ("Wait_v2", "Free")})
    await_call(rig, "nvmlEventSetWait_v2", calls(rig, "nvmlEventSetWait_v2") + 2)
    rig.gpu(1).event(XID, 79)
    assert rings(backend)


def test_a_gpu_that_refuses_is_told_once_keeps_no_other_out_and_is_asked_again(rig, listen, monkeypatch):
    monkeypatch.setattr(happenings, "REFUSED_FOR", 0.0)
    rig.gpu(0).set(event_types=0)
    rig.gpu(1).fail("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with capture_logs() as logs:
        backend = listen(kernel=False)
        rig.gpu(2).event(XID, 48)
        assert rings(backend)
    refusals = [line["event"] for line in logs if line["event"].startswith("cannot hear the events of")]
    assert [text.partition(":")[0] for text in refusals] == [
        f"cannot hear the events of GPU {number}, only what the kernel logs of it" for number in (0, 1)
    ]
    backend.hush()
    rig.gpu(1).fail("nvmlDeviceRegisterEvents", None)
    await_call(rig, "nvmlEventSetWait_v2", calls(rig, "nvmlEventSetWait_v2") + 2)
    rig.gpu(1).event(XID, 79)
    assert rings(backend)
    assert codes(backend, rig.gpu(1).uuid) == [79]


def test_without_the_kernels_log_that_is_said_once_and_nvml_is_heard(rig, listen):
    with capture_logs() as logs:
        backend = listen()
    (said,) = [line for line in logs if line["event"] == "cannot read the kernel's log"]
    assert said["error"].endswith("dev/kmsg: no such file or directory")
    rig.gpu(2).event(XID, 48)
    assert rings(backend)
    assert codes(backend, rig.gpu(2).uuid) == [48]


def test_a_log_that_ends_is_said_and_nvml_is_heard(rig, kmsg, listen):
    backend = listen()
    kernel = next(thread for thread in threading.enumerate() if thread.name == "kernel-log")
    with capture_logs() as logs:
        kmsg.close()
        kernel.join(5)
    assert [line["event"] for line in logs] == ["cannot read the kernel's log any more"]
    rig.gpu(2).event(XID, 48)
    assert rings(backend)


def test_a_wait_that_hangs_keeps_neither_the_kernels_log_nor_the_end_waiting(rig, kmsg, listen, monkeypatch):
    monkeypatch.setattr(ears, "LEAVES_WITHIN", 0.05)
    backend = listen()
    with rig.machine.hanging("nvmlEventSetWait_v2") as file:
        await_call(rig, "nvmlEventSetWait_v2", calls(rig, "nvmlEventSetWait_v2") + 1)
        kmsg.xid(rig.gpu(1).pci, 79)
        assert rings(backend)
        stuck = next(thread for thread in threading.enumerate() if thread.name == "nvml-events")
        with capture_logs() as logs:
            backend.close()
        assert [line["event"] for line in logs] == ["a thread is left behind in the driver"]
        file.unlink()
        stuck.join(5)


def test_a_thread_that_hangs_is_told_once_and_named_by_whoever_cannot_reset_for_it(rig, listen, monkeypatch):
    for module, name in ((ears, "LEAVES_WITHIN"), (ears, "SILENT"), (library, "LEAVES_WITHIN")):
        monkeypatch.setattr(module, name, 0.05)
    backend = listen(kernel=False)
    uuid, told = rig.gpu(0).uuid, "a thread that listens has not come back"
    with rig.machine.hanging("nvmlEventSetWait_v2") as file, capture_logs() as logs:
        await_call(rig, "nvmlEventSetWait_v2", calls(rig, "nvmlEventSetWait_v2") + 1)
        with pytest.raises(DeviceError, match=r"has not been answered \(nvml-events\)"):
            backend.let_go()
        rings(backend, 100)  # for longer than it may be silent
        for _ in range(2):
            backend.vitals(uuid)
        assert [(line["event"], line["thread"]) for line in logs] == [(told, "nvml-events")]
        stuck = next(thread for thread in threading.enumerate() if thread.name == "nvml-events")
        backend.close()
        file.unlink()
        stuck.join(5)
        assert backend.heard(uuid) == Vitals(partial=True)
    assert [line["event"] for line in logs] == [told, "a thread is left behind in the driver"]


def test_threads_that_wait_for_what_does_not_come_are_not_missed(rig, kmsg, listen, monkeypatch):  # noqa: ARG001 - a log in which nothing is said
    monkeypatch.setattr(ears, "TURN", 0.05)
    monkeypatch.setattr(ears, "SILENT", 1.0)
    monkeypatch.setattr(ears, "FIRST_PAUSE", 2.0)
    backend = listen()
    rig.machine.fail("nvmlEventSetWait_v2", pynvml.NVML_ERROR_UNKNOWN)
    ends = time.monotonic() + 1.3
    with capture_logs() as logs:
        while time.monotonic() < ends:
            backend.heard(rig.gpu(0).uuid)
            time.sleep(0.05)
    assert {line["event"].partition(";")[0] for line in logs} <= {"cannot hear the driver's events"}


def test_nothing_is_heard_before_the_alarm_is_set_and_nothing_is_left_after_the_end(rig, kmsg, listen):
    files = len([*Path("/proc/self/fd").iterdir()])
    quiet = rig.backend(kernel=KernelLog(kmsg.path))
    quiet.inventory()
    quiet.hush()
    quiet.close()
    assert quiet.vitals(rig.gpu(0).uuid) == Vitals()
    rig.library.close()
    backend = listen()
    assert backend.alarm() == backend.alarm()
    backend.close()
    backend.close()
    rig.library.close()
    assert len([*Path("/proc/self/fd").iterdir()]) == files
