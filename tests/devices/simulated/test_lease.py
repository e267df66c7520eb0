"""The kernel knows who uses a file, however they use it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scrubber.devices.simulated import lease

READ = "import os,sys,time; os.open(sys.argv[1], os.O_RDONLY); print(1, flush=True); time.sleep(60)"
WRITE = "import os,sys,time; os.open(sys.argv[1], os.O_RDWR); print(1, flush=True); time.sleep(60)"
MAP = """
import ctypes, os, sys, time
handle = os.open(sys.argv[1], os.O_RDWR)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
assert libc.mmap(None, 4096, 3, {flags}, handle, 0) != ctypes.c_void_p(-1).value
os.close(handle)
os.unlink(sys.argv[1]) if {unlink} else None
print(1, flush=True)
time.sleep(60)
"""


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    path = tmp_path / "memory"
    path.write_bytes(bytes(8192))
    return path


def test_a_file_that_nobody_has_is_free_again_and_again(memory: Path) -> None:
    assert [lease.held(memory) for _ in range(3)] == [False, False, False]


@pytest.mark.parametrize("code", [READ, WRITE], ids=["read", "write"])
def test_an_open_file_is_held_until_its_holder_ends(memory: Path, launch, code: str) -> None:
    process = launch(code, memory)
    assert lease.held(memory) is True
    process.kill()
    process.wait()
    assert lease.held(memory) is False


@pytest.mark.parametrize("flags", [1, 2], ids=["shared", "private"])
def test_a_mapping_holds_the_file_after_its_descriptor_is_closed(memory: Path, launch, flags: int) -> None:
    launch(MAP.format(flags=flags, unlink=False), memory)
    assert lease.held(memory) is True


def test_another_name_of_the_file_does_not_hide_its_holder(memory: Path, launch) -> None:
    other = memory.with_name("alias")
    os.link(memory, other)
    launch(WRITE, other)
    assert lease.held(memory) is True


def test_an_open_file_in_this_process_counts_too(memory: Path) -> None:
    with memory.open("rb"):
        assert lease.held(memory) is True


def test_what_the_kernel_will_not_say_is_unknown(memory: Path) -> None:
    assert lease.held(memory.with_name("missing")) is None
    assert lease.held(Path(os.devnull)) is None
