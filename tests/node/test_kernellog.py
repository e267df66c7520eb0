"""What the kernel says is read, whole, from the oldest message on; what others write into its log is not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from scrubber.node.kernellog import LARGEST, KernelLog, check_readable, of_the_kernel
from tests.fakes.kmsg import USER, Kmsg

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python"


@pytest.fixture
def kmsg(tmp_path) -> Iterator[Kmsg]:
    made = Kmsg(tmp_path / "kmsg")
    yield made
    made.close()


@pytest.fixture
def reader(kmsg) -> Iterator[KernelLog]:
    made = KernelLog(kmsg.path)
    assert made.open() == ""
    yield made
    made.close()


def test_each_complete_record_is_read_one_time(kmsg, reader):
    kmsg.say("first", at=1.5)
    kmsg.write(b"3,7,42,-,caller=T12;text; more\n SUBSYSTEM=pci\n 3,8,43,-;no\n3,9,44,c;he")
    assert [*reader.messages()] == [(1_500_000, "first"), (42, "text; more")]
    kmsg.write(b"llo\n3,8,45,-;")
    assert [*reader.messages()] == [(44, "hello")]
    assert [*reader.messages()] == []


def test_a_program_does_not_speak_for_the_kernel(kmsg, reader):
    kmsg.say(XID, facility=USER)
    kmsg.say(XID, facility=3)
    kmsg.write(f"4294967295,1,1,-;{XID}\n".encode())
    kmsg.say("mine\n3,9,9,-;" + XID)
    assert [text for _, text in reader.messages()] == [f"mine\\x0a3,9,9,-;{XID}"]


def test_all_records_are_read_however_the_reads_split(kmsg, reader):
    for number in range(1300):  # as much as a pipe holds
        kmsg.write(b"3,%d,%d,-;%s\n" % (number, number, b"x" * (20 + number % 17)))
    assert [at for at, _ in reader.messages()] == [*range(1300)]


def test_an_endless_line_takes_little_memory(kmsg, reader):
    for head in (b"11,1,1,-;", b"3,2,2,-;"):
        kmsg.write(head.ljust(LARGEST, b"x"))
        assert [*reader.messages()] == []
        assert len(reader._rest) <= LARGEST
    kmsg.write(b"\n3,4,4,-;next\n")
    assert [*reader.messages()] == [(4, "next")]


def test_overwritten_records_are_reported_once(kmsg, reader, monkeypatch):
    """As when a ring went round: the next read says EPIPE, and the one after it begins with what is left."""
    lost, read = iter([True, False, True, False]), os.read

    def overrun(descriptor: int, count: int) -> bytes:
        if next(lost, False):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        return read(descriptor, count)

    monkeypatch.setattr(os, "read", overrun)
    kmsg.say("left", at=1)
    with capture_logs() as logs:
        assert [*reader.messages(), *reader.messages()] == [(1_000_000, "left")]
    assert [line["event"] for line in logs] == [
        "kernel messages were overwritten before they were read: XIDs may be missing"
    ]


def test_an_end_is_not_waited_at(kmsg):
    reader = KernelLog(kmsg.path)
    reader.open()
    kmsg.close()
    with pytest.raises(EOFError):
        [*reader.messages()]
    reader.close()


@pytest.mark.parametrize("kind", ["absent", "file", "folder", "another device"])
def test_an_unreadable_kernel_log_is_reported(tmp_path, kind):
    path = tmp_path / "kmsg"
    if kind == "file":
        path.write_text("3,1,1,-;no\n")
    elif kind == "folder":
        path.mkdir()
    elif kind == "another device":
        path.symlink_to("/dev/null")
    words = "no such file or directory" if kind == "absent" else "it is not a kernel log"
    assert KernelLog(path).open() == f"{path}: {words}"
    with pytest.raises(OSError, match="(?i)" + words):
        check_readable(path)


@given(st.one_of(st.binary(), st.text().map(lambda text: b"3,1,2,-;" + text.encode())))
def test_a_line_of_any_content_is_read(line):
    found = of_the_kernel(line)
    assert found is None or isinstance(found[1], str)
