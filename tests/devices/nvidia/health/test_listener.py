"""What the driver says unasked reaches the vitals: by the kernel's log and by NVML's events, of which one is enough."""

from __future__ import annotations

import time
from collections.abc import Iterator

from structlog.testing import capture_logs

from scrubber.core.model import Vitals
from scrubber.devices.nvidia.health import listener, xid_log
from scrubber.node.kernellog import KernelLog
from tests.devices.nvidia.health.events_seen import XID, await_call, await_code, await_more, calls, codes, rings, thread
from tests.fakes.kmsg import USER
from tests.fakes.nvml.machine import Slice
from tests.patience import WITHIN


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


def test_a_new_kernel_error_alarms_and_is_in_the_vitals(rig, kmsg, listen):
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


def test_an_event_of_both_sources_counts_once(rig, kmsg, listen):
    backend = listen()
    rig.gpu(2).event(XID, 79)
    kmsg.xid(rig.gpu(2).pci, 79)
    rig.gpu(1).event(XID, 48)  # told after the other: when it is known, so is everything before it
    await_code(backend, rig.gpu(1).uuid, 48)
    assert codes(backend, rig.gpu(2).uuid) == [79]


def test_a_slice_has_its_own_errors_and_its_gpus(rig, kmsg, listen):
    one, other = rig.cut(0, Slice("3g.71gb"), Slice("1g.18gb"))
    backend = listen(whole=lambda code: code == 95)
    first, _ = [backend._inventory.place_of(uuid)[1] for uuid in (one, other)]
    kmsg.xid(rig.gpu(0).pci, 31, about=f" GPU-I:{first:02} GPU-CI:00")
    kmsg.xid(rig.gpu(0).pci, 95, about=f" GPU-I:{first:02}")
    kmsg.xid(rig.gpu(0).pci, 62)
    await_code(backend, one, 62)  # and what the kernel has said before
    rig.gpu(0).event(XID, 94, first)
    await_code(backend, one, 94)
    assert codes(backend, one) == [31, 95, 62, 94]
    assert codes(backend, other) == [95, 62]


def test_a_lost_gpu_does_not_silence_the_others(rig, kmsg, listen, monkeypatch):
    monkeypatch.setattr(listener, "FIRST_PAUSE", 0.01)
    backend = listen()
    rig.gpu(0).set(lost=True)
    kmsg.xid(rig.gpu(0).pci, 79, ", GPU has fallen off the bus.")
    assert rings(backend)
    found = backend.vitals(rig.gpu(0).uuid)
    assert (found.lost, [xid.code for xid in found.xids]) == (True, [79])
    await_call(rig, "nvmlEventSetCreate", 2)  # the wait has failed: there is a new set, without the lost one
    await_more(rig, "nvmlEventSetWait_v2", 1)
    backend.clear_alarm()
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
    rig.gpu(2).event(XID, 48)
    assert rings(backend)
    assert (codes(backend, rig.gpu(1).uuid), codes(backend, rig.gpu(2).uuid)) == ([62], [48])


def test_a_missing_kernel_log_is_logged_and_nvml_counts(rig, listen, monkeypatch):
    monkeypatch.setattr(xid_log, "GRACE", 3600.0)  # there is no other word to wait for
    with capture_logs() as logs:
        backend = listen()
    (said,) = [line for line in logs if line["event"] == "cannot read the kernel's log"]
    assert said["error"].endswith("dev/kmsg: no such file or directory")
    rig.gpu(2).event(XID, 48)
    assert rings(backend)
    assert codes(backend, rig.gpu(2).uuid) == [48]


def test_the_kernel_logs_end_is_logged_and_nvml_counts(rig, kmsg, listen, monkeypatch):
    monkeypatch.setattr(xid_log, "GRACE", 3600.0)
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
