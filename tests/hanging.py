"""Processes that hang in the kernel, in state D, as on a driver or on network storage that does not answer.

They ask a file system of their own that hears them and never answers: KILL ends them only once it is taken away.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.patience import WITHIN

HOLD = "import os, sys; held = os.open(sys.argv[1], os.O_RDWR); os.stat(sys.argv[2])"
MOST = 2**17  # bytes of a question
NAMES = struct.Struct("=IIQ")  # a question: its length, what it asks, its number
HEAD = struct.Struct("=IiQ")  # an answer: its length, no error, the number of the question
READY = struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 1, 1, 4096, 1, 0, 0, 0)  # a version, and limits
DETACH = 2  # for umount2: it goes although somebody may look at it
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass
class Hanging:
    """A process that has a file open and asks in vain."""

    process: subprocess.Popen[bytes]
    device: int

    @property
    def pid(self) -> int:
        """The pid of the process."""
        return self.process.pid

    @property
    def state(self) -> str:
        """The state letter of the process in /proc."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def let_go(self) -> None:
        """Its question fails: what was sent to it meanwhile arrives, or it ends by itself. Return when it is gone."""
        if self.device >= 0:
            os.close(self.device)
            self.device = -1
        self.process.wait(WITHIN)


@contextmanager
def hanging(held: Path, place: Path) -> Iterator[Hanging]:
    """One that has this file open; ``place`` is where its file system stands. It is gone afterwards."""
    place.mkdir()
    device = _mount(place)
    it: Hanging | None = None
    try:
        number = NAMES.unpack_from(_question(device))[2]  # whether it is ready
        os.write(device, HEAD.pack(HEAD.size + len(READY), 0, number) + READY)
        it = Hanging(subprocess.Popen([sys.executable, "-S", "-c", HOLD, held, place / "anything"]), device)
        _question(device)
        yield it
    finally:
        if it is None:
            os.close(device)
        else:
            it.process.kill()
            it.let_go()
        LIBC.umount2(os.fsencode(place), DETACH)


def _mount(place: Path) -> int:
    """The end at which the file system at this place is answered for."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        pytest.skip("takes root, and /dev/fuse, to make a process hang")
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if LIBC.mount(b"hanging", os.fsencode(place), b"fuse", 0, options.encode()) != 0:
        os.close(device)
        pytest.skip(f"takes root, to mount what makes a process hang: {os.strerror(ctypes.get_errno())}")
    return device


def _question(device: int) -> bytes:
    assert select.select([device], [], [], WITHIN)[0], "no process asks"
    return os.read(device, MOST)
