"""What NVML tells unasked is heard through a real pynvml, whatever refuses or fails on the way."""

from __future__ import annotations

import time
from collections import Counter

import pynvml
from structlog.testing import capture_logs

from scrubber.core.model import Vitals
from scrubber.devices.nvidia.health import listener, nvml_events
from tests.devices.nvidia.health.events_seen import (
    RECOVERY,
    XID,
    asked,
    await_call,
    await_more,
    calls,
    codes,
    rings,
    until,
)


def test_an_event_of_nvml_rings_and_is_in_the_vitals(rig, listen):
    backend = listen(kernel=False)
    rig.gpu(2).event(XID, 48)
    assert rings(backend)
    assert codes(backend, rig.gpu(2).uuid) == [48]
    assert codes(backend, rig.gpu(1).uuid) == []


def test_a_changed_recovery_action_wakes_the_service(rig, listen):
    backend = listen(kernel=False)
    rig.gpu(2).set({"field.230": 1})
    rig.gpu(2).event(RECOVERY)
    assert rings(backend)
    assert backend.vitals(rig.gpu(2).uuid) == Vitals(reset_required=True)


def test_the_listener_releases_the_driver_at_once(rig, listen, monkeypatch):
    monkeypatch.setattr(listener, "JOIN_TIMEOUT", 60.0)  # a thread that has to be left behind is found out
    backend = listen(kernel=False)
    for _ in range(5):
        began = time.monotonic()
        backend.release_driver()
        assert rig.machine.clients() == ()
        assert time.monotonic() - began < 10
        backend.reacquire_driver()


def test_a_reopened_driver_is_listened_to_again(rig, listen):
    backend = listen(kernel=False)
    rig.library.renew()
    await_call(rig, "nvmlEventSetCreate", 2)
    await_more(rig, "nvmlEventSetWait_v2", 1)
    rig.gpu(2).event(XID, 48)
    assert rings(backend)
    assert calls(rig, "nvmlEventSetFree") == 1


def test_a_wait_that_fails_is_retried_slower_and_logged_once(rig, listen, monkeypatch):
    monkeypatch.setattr(listener, "FIRST_PAUSE", 0.02)
    rig.machine.fail("nvmlEventSetWait_v2", pynvml.NVML_ERROR_UNKNOWN)
    with capture_logs() as logs:
        backend = listen(kernel=False)
        began = time.monotonic()
        await_call(rig, "nvmlEventSetWait_v2", 6)
        assert not rings(backend, 0)
    assert time.monotonic() - began > 0.04 + 0.08 + 0.16 + 0.32  # the first pause may have begun before
    assert len([line for line in logs if line["event"].startswith("cannot receive the driver's events")]) == 1
    assert calls(rig, "nvmlEventSetFree") >= 5


def test_alternating_errors_are_logged_once_each(rig, listen, monkeypatch):
    monkeypatch.setattr(listener, "FIRST_PAUSE", 0.005)
    monkeypatch.setattr(listener, "LONGEST_PAUSE", 0.005)
    listen(kernel=False)
    with capture_logs() as logs:
        for code in (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_MEMORY) * 3:
            rig.machine.fail("nvmlEventSetWait_v2", code)
            await_more(rig, "nvmlEventSetWait_v2", 3)
    assert [line["event"].partition(";")[0] for line in logs] == ["cannot receive the driver's events"] * 2


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
            rig.machine.fail("nvmlEventSetWait_v2", pynvml.NVML_ERROR_UNKNOWN)
            until(lambda: len(pauses) >= 8)
            rig.machine.fail("nvmlEventSetWait_v2", None)
            await_more(rig, "nvmlEventSetWait_v2", 2)
            assert pauses[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
            pauses.clear()
    assert [line["event"].partition(";")[0] for line in logs] == ["cannot receive the driver's events"] * 2


def test_an_event_set_that_was_partly_created_is_not_used(rig, listen, monkeypatch):
    monkeypatch.setattr(listener, "FIRST_PAUSE", 0.005)
    listen(kernel=False)
    rig.machine.fail("nvmlDeviceGetCount_v2", pynvml.NVML_ERROR_UNKNOWN)
    with capture_logs() as logs:
        rig.library.renew()
        await_call(rig, "nvmlEventSetCreate", 4)
    assert {line["error"] for line in logs} == {"nvmlDeviceGetCount failed: Unknown Error"}


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
    monkeypatch.setattr(nvml_events, "REFUSED_FOR", 0.0)
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


def test_a_gpu_that_refuses_events_is_asked_only_once(rig, listen):
    rig.gpu(1).fail("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_NOT_SUPPORTED)
    listen(kernel=False)
    await_more(rig, "nvmlEventSetWait_v2", 3)
    assert calls(rig, "nvmlDeviceRegisterEvents") == len(rig.machine.gpus)


def test_a_registered_gpu_is_not_registered_twice(rig, listen, monkeypatch):
    monkeypatch.setattr(nvml_events, "REFUSED_FOR", 0.0)
    rig.gpu(1).fail("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_NOT_SUPPORTED)
    listen(kernel=False)
    await_more(rig, "nvmlEventSetWait_v2", 3)
    times = sorted(Counter(asked(rig, "nvmlDeviceRegisterEvents")).values())
    assert times[:-1] == [1] * (len(rig.machine.gpus) - 1)
    assert times[-1] > 1


def test_a_node_without_event_support_is_logged(rig, listen, monkeypatch):
    monkeypatch.setattr(listener, "FIRST_PAUSE", 0.005)
    backend = listen(kernel=False)
    rig.machine.fail("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with capture_logs() as logs:
        rig.library.renew()
        await_call(rig, "nvmlEventSetCreate", 2)
        waits = calls(rig, "nvmlEventSetWait_v2")
        await_call(rig, "nvmlEventSetCreate", 4)
        assert calls(rig, "nvmlEventSetWait_v2") == waits
    assert "no GPU reports events" in {line.get("error") for line in logs}
    rig.machine.fail("nvmlDeviceRegisterEvents", None)
    await_more(rig, "nvmlEventSetWait_v2", 1)
    for gpu in rig.machine.gpus:  # some may have refused just before: they are asked again in a minute
        gpu.event(XID, 79)
    assert rings(backend)


def test_an_unloaded_driver_does_not_count_as_refused_events(rig, listen, monkeypatch):
    monkeypatch.setattr(listener, "FIRST_PAUSE", 0.005)
    backend = listen(kernel=False)
    rig.machine.fail("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with capture_logs() as logs:
        rig.library.renew()
        await_call(rig, "nvmlEventSetCreate", 3)
    assert {line["event"].partition(";")[0] for line in logs} == {"cannot receive the driver's events"}
    assert {line["error"].endswith("the driver is not loaded") for line in logs} == {True}
    rig.machine.fail("nvmlDeviceRegisterEvents", None)
    await_more(rig, "nvmlEventSetWait_v2", 1)
    rig.gpu(1).event(XID, 79)
    assert rings(backend)
