"""The kernel knows whether a process has a file open, however the process keeps it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scrubber.node import open_check
from scrubber.node.open_check import RefusedError, is_open
from scrubber.node.proc import status

READ = "import os,sys,time; os.open(sys.argv[1], os.O_RDONLY); print(1, flush=True); time.sleep(60)"
WRITE = "import os,sys,time; os.open(sys.argv[1], os.O_RDWR); print(1, flush=True); time.sleep(60)"
MAP = """
import ctypes, os, sys, time
handle = os.open(sys.argv[1], os.O_RDWR)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
assert libc.mmap(None, 4096, 3, {flags}, handle, 0) != ctypes.c_void_p(-1).value
os.close(handle)
print(1, flush=True)
time.sleep(60)
"""


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    path = tmp_path / "memory"
    path.write_bytes(bytes(8192))
    return path


def test_a_file_without_users_is_not_open(memory: Path) -> None:
    assert [is_open([str(memory)]) for _ in range(3)] == [False, False, False]


@pytest.mark.parametrize("code", [READ, WRITE], ids=["read", "write"])
def test_an_open_file_is_held_until_its_holder_ends(memory: Path, launch, code: str) -> None:
    process = launch(code, memory)
    assert is_open([str(memory)]) is True
    process.kill()
    process.wait()
    assert is_open([str(memory)]) is False


@pytest.mark.parametrize("flags", [1, 2], ids=["shared", "private"])
def test_a_mapping_holds_the_file_after_its_descriptor_is_closed(memory: Path, launch, flags: int) -> None:
    launch(MAP.format(flags=flags), memory)
    assert is_open([str(memory)]) is True


def test_another_name_of_the_file_does_not_hide_its_holder(memory: Path, launch) -> None:
    other = memory.with_name("alias")
    os.link(memory, other)
    launch(WRITE, other)
    assert is_open([str(memory)]) is True


IN_TRANSIT = """
import os, socket, sys, time
one, other = socket.socketpair()
handle = os.open(sys.argv[1], os.O_RDWR)
socket.send_fds(one, [b"x"], [handle])
os.close(handle)
print(1, flush=True)
time.sleep(60)
"""
RESTLESS = """
import os, sys
handle = os.open(sys.argv[1], os.O_RDWR)
print(1, flush=True)
while True:
    other = os.dup(handle)
    os.close(handle)
    handle = other
"""


def test_a_file_in_transit_on_a_socket_counts(memory: Path, launch) -> None:
    process = launch(IN_TRANSIT, memory)
    assert is_open([str(memory)]) is True
    process.kill()
    process.wait()
    assert is_open([str(memory)]) is False


def test_a_process_that_moves_its_descriptor_is_always_found(memory: Path, launch) -> None:
    launch(RESTLESS, memory)
    assert {is_open([str(memory)]) for _ in range(100)} == {True}


def test_only_our_own_process_is_excluded(memory: Path, launch) -> None:
    ours = launch(WRITE, memory)
    assert is_open([str(memory)], {ours.pid: None}) is False
    other = launch(IN_TRANSIT, memory)
    assert is_open([str(memory)], {ours.pid: None}) is True
    other.kill()
    other.wait()
    assert is_open([str(memory)], {ours.pid: None}) is False


def test_a_reused_pid_of_ours_counts(memory: Path, launch) -> None:
    holder = launch(WRITE, memory)
    started = status(f"/proc/{holder.pid}").started
    assert is_open([str(memory)], {holder.pid: started}) is False
    assert is_open([str(memory)], {holder.pid: started - 1}) is True


def test_a_reused_descriptor_is_not_the_old_file(memory: Path, launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the reading of /proc and the duplicate, the process opened another file under the same number."""
    ours = launch(WRITE, memory)
    monkeypatch.setattr(open_check, "_leads_to", lambda _link, _file: True)
    launch(IN_TRANSIT, memory)
    assert is_open([str(memory)], {ours.pid: None}) is True


def test_duplicates_of_our_one_description_do_not_count(memory: Path) -> None:
    with memory.open("rb+") as file:
        copy = os.dup(file.fileno())
        assert is_open([str(memory)], {os.getpid(): None}) is False
        os.close(copy)


def test_two_open_files_of_ours_prevent_the_answer(memory: Path) -> None:
    with memory.open("rb"), memory.open("rb"):
        assert is_open([str(memory)], {os.getpid(): None}) is None


def test_one_open_file_of_several_is_enough(memory: Path) -> None:
    other = memory.with_name("other")
    other.touch()
    with other.open("rb"):
        assert is_open([str(memory), str(other)]) is True
    assert is_open([str(memory), str(other)]) is False


def test_a_device_without_files_is_unknown() -> None:
    assert is_open([]) is None


def test_an_open_file_in_this_process_counts_too(memory: Path) -> None:
    with memory.open("rb"):
        assert is_open([str(memory)]) is True


def test_an_unanswered_check_is_unknown(memory: Path) -> None:
    with pytest.raises(RefusedError):
        is_open([str(memory.with_name("missing"))])
    assert is_open([os.devnull]) is None


def test_two_simultaneous_checks_are_no_holders(memory: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _number: is_open([str(memory)]), range(5_000)))
    assert set(answers) == {False}
