"""A fatal error of a switch counts for a while, on whatever clock the kernel tells the time."""

from __future__ import annotations

import pytest

from scrubber.core.model import AilmentKind, Vitals
from scrubber.devices.nvidia.health import listener
from tests.devices.nvidia.health.events_seen import FATAL, XID, await_code, rings, uptime
from tests.fakes.nvml.machine import Slice


def test_a_fatal_switch_error_concerns_every_gpu_and_no_slice(rig, kmsg, listen, monkeypatch):
    (slice_,) = rig.cut(7, Slice("1g.18gb"))
    backend = listen()
    kmsg.say("nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 20009, Non-fatal, Link 04 RX Short Error Rate")
    kmsg.say(FATAL)
    assert rings(backend)
    for gpu in map(rig.gpu, range(7)):
        (sign,) = backend.vitals(gpu.uuid).signs
        expected = "nvswitch3 of this node: SXid 24007, Link 30 sourcetrack timeout error"
        assert (sign.kind, sign.detail) == (AilmentKind.SWITCH, expected)
        assert backend.reported(gpu.uuid) == Vitals(signs=(sign,), partial=True)
    assert (backend.vitals(slice_), backend.reported(slice_)) == (Vitals(), Vitals(partial=True))
    monkeypatch.setattr(listener, "FATAL_SECONDS", 0.0)
    assert backend.vitals(rig.gpu(0).uuid) == Vitals()


def test_the_last_of_many_fatal_switch_errors_is_reported(rig, kmsg, listen):
    kmsg.say(FATAL)
    kmsg.say(FATAL.replace("nvswitch3", "nvswitch5"))
    (sign,) = listen().vitals(rig.gpu(0).uuid).signs
    assert sign.detail.startswith("nvswitch5 of this node")


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
    """Else the kernel's next word, or its old ones after a restart, would be older than what was judged, or be news."""
    backend, place, ago = listen(), rig.gpu(1), share * uptime()
    before = uptime() - ago
    kmsg.xid(rig.gpu(2).pci, 13, at=before)
    await_code(backend, rig.gpu(2).uuid, 13)
    place.event(XID, 79)
    await_code(backend, place.uuid, 79)
    after = uptime() - ago
    (xid,) = backend.vitals(place.uuid).xids
    assert before <= xid.at <= after
    assert xid.number == round(xid.at * 1e6)
