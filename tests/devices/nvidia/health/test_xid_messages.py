"""What the driver's messages mean, and each event counts once, under a number that a restart does not change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubber.core.model import Xid
from scrubber.devices.nvidia.health import xid_messages
from scrubber.devices.nvidia.health.xid_messages import LONGEST, GpuError, SwitchError, XidLog, read

HERE, THERE = "0000:3b:00", "0000:3c:00"

XIDS = [
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", 79, None, None),
    ("NVRM: Xid (0000:3B:00): 14, Channel 00000001", 14, None, None),
    ("NVRM: Xid (PCI:00000000:3b:00): 45, pid=7, name=a, Ch 00000010", 45, None, 7),
    (
        "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
        *(94, 5, 7194),
    ),
    ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 31, pid=7194, name=python, Ch 00000002", 31, 5, 7194),
    ("NVRM: Xid (PCI:0000:3b:00 GPU-I:11 GPU-CI:02 NEW:1): 13, pid=1, name=x, Graphics", 13, 11, 1),
    ("NVRM: Xid (PCI:0000:3b:00 NEW:1): 13, pid=1, name=x, Graphics", 13, None, 1),
    ("NVRM: Xid (PCI:0000:3b:00): 13, pid='<unknown>', name= pid=7, name=x, Graphics", 13, None, None),
]


@pytest.mark.parametrize(("text", "code", "instance", "pid"), XIDS)
def test_an_xid_is_read_with_its_gpu_instance_and_process(text, code, instance, pid):
    assert read(text.replace("3B", "3b")) == GpuError(HERE, code, instance, pid=pid)


CHANGED = "NVRM: Xid (PCI:0000:3b:00): 154, {}GPU recovery action changed from 0x{} ({}) to 0x{} ({})"


@pytest.mark.parametrize(
    ("number", "words", "action"),
    [
        ("0", "None", "none"),
        ("1", "GPU Reset Required", "reset_gpu"),
        ("1", "PF FLR", "reset_gpu"),
        ("2", "Node Reboot Required", "restart_vm_or_node"),
        ("2", "OS Reboot", "restart_vm_or_node"),
        ("3", "Drain P2P", "drain_p2p"),
        ("4", "Drain and Reset", "reset_gpu"),
        ("5", "Something New", ""),
        ("6", "None", ""),
        ("7", "System Reboot", "restart_vm_or_node"),
    ],
)
def test_xid_154_says_what_must_be_done(number, words, action):
    found = read(CHANGED.format("pid=1, name=x, ", "0", "None", number, words))
    assert found == GpuError(HERE, 154, action=action, pid=1)


def test_a_process_cannot_say_what_xid_154_asks_for():
    name = "name=GPU recovery action changed from 0x1 (x) to 0x0 (None), "
    assert read(CHANGED.format(name, "0", "None", "1", "GPU Reset Required")) == GpuError(HERE, 154, action="reset_gpu")
    assert read(f"NVRM: Xid (PCI:0000:3b:00): 154, {name}something else") == GpuError(HERE, 154)
    assert read(f"NVRM: Xid (PCI:0000:3b:00): 79, {name}lost") == GpuError(HERE, 79)


@pytest.mark.parametrize(
    "name", ["x): 79, ", "(PCI:0000:3c:00): 79, ", "GPU-I:03): 79", "NVRM: Xid (PCI:0000:3c:00): 79, "]
)
def test_the_name_of_a_process_says_neither_code_nor_gpu(name):
    assert read(f"NVRM: Xid (PCI:0000:3b:00): 13, pid=4711, name={name}, Graphics Exception") == GpuError(
        HERE, 13, pid=4711
    )


FATAL = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 30 sourcetrack timeout error"


def test_errors_of_switches_are_fatal_or_not():
    assert read(FATAL) == SwitchError("nvswitch3", "SXid 24007, Link 30 sourcetrack timeout error")
    assert read(FATAL.replace("Fatal", "Non-fatal")) is None


def test_a_long_message_is_cut_at_the_end():
    error = read(f"{FATAL}{'x' * LONGEST}")
    assert isinstance(error, SwitchError)
    assert error.detail == f"SXid 24007, Link 30 sourcetrack timeout error{'x' * LONGEST}"[:LONGEST]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Data {0x50610002, 0x00000000}",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Severity 1 Engine instance 30",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal",
        "NVRM: Xid (PCI:[4711]: segfault at 0 ip 0 sp 0 error 4",  # the name of a process that crashes begins a message
        "python[4711]: NVRM: Xid (PCI:0000:3b:00): 79, pid=1",
        " NVRM: Xid (PCI:0000:3b:00): 79, pid=1",
        "x NVRM: Xid (PCI:0000:3b:00): 79, pid=1",
        "NVRM: Xid (PCI:0000:3b:00): 79 and more",
        "NVRM: Xid (PCI:0000:3b:00): 7999999, pid=1",
        "NVRM: Xid (PCI:0000:3b:00): -1, pid=1",
    ],
)
def test_a_similar_line_is_no_error(text):
    assert read(text) is None


PIECES = st.lists(
    st.sampled_from(["NVRM: Xid (", "PCI:", HERE, " GPU-I:05", "): ", "79", "154,", FATAL, "SXid", "\n", "("])
)


@given(st.one_of(st.text(), PIECES.map("".join)))
def test_no_text_in_the_kernel_log_breaks_the_reader(text):
    assert read(text) is None or read(text)


# --- the list of each GPU ---

LOST, APP = GpuError(HERE, 79), GpuError(HERE, 13, 5)


def codes(log: XidLog, place: str = HERE, instance: int | None = None) -> list[int]:
    return [xid.code for xid in log.of(place, instance)]


def test_an_event_of_one_process_concerns_only_its_instance():
    log, any_slice = XidLog(whole=lambda code: code != APP.code), XidLog()
    for number, event in enumerate((APP, GpuError(HERE, 95, 5), GpuError(HERE, 31))):
        log.add(event, number)
        any_slice.add(event, number)
    assert codes(log, instance=5) == [13, 95, 31]
    assert codes(log, instance=6) == [95, 31]
    assert codes(log) == codes(any_slice, instance=6) == [13, 95, 31]


def test_a_storm_displaces_neither_another_code_nor_another_instance():
    log = XidLog(whole=lambda _code: False)
    log.add(GpuError(HERE, 94, 6), 1)
    log.add(LOST, 2)
    for number in range(10_000):
        log.add(GpuError(HERE, 94, 5), number + 3)
    assert codes(log, instance=6) == [94, 79]
    assert len(log.of(HERE)) == 2 + xid_messages.KEPT


EVENTS = st.builds(GpuError, st.sampled_from([HERE, THERE]), st.sampled_from([13, 79]), st.sampled_from([None, 5]))


@given(st.lists(st.tuples(EVENTS, st.integers(0, 9)), max_size=xid_messages.KEPT))
def test_each_event_counts_once_under_a_rising_number(events):
    log = XidLog()
    for event, microseconds in events:
        before = [xid.number for xid in log.of(event.place)]
        log.add(event, microseconds)
        assert [xid.number for xid in log.of(event.place)][:-1] == before
    assert len(log.of(HERE)) + len(log.of(THERE)) == len(events)
    for place in (HERE, THERE):
        numbers = [xid.number for xid in log.of(place)]
        assert numbers == sorted({*numbers})


def test_an_event_keeps_the_time_and_process_of_its_message():
    log = XidLog()
    log.add(GpuError(HERE, 79, pid=7), 7_000_000)
    assert log.of(HERE) == (Xid(7_000_000, 79, 7.0, pid=7),)
