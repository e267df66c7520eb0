"""A process that keeps the memory of a GPU in a way that is hard to see, and reads or writes there.

``python -I -S attacker.py MANNER GROUP DIRECTORY ID POD DEED STAY MEMORY`` prints the uptime when it has the memory,
and ``refused`` when the kernel does not let it. Then it goes into the control group GROUP, if one is named. After the
first byte on stdin it reads (``reads``: it tells each pod whose bytes it sees), writes its fingerprint at random places
(``writes``), or does neither (``silent``). MANNER says how it keeps the memory: the name of a method. All processes
that come of it are in one session, and have its stdout open.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK = 64  # bytes of a fingerprint, as in tenant.py
NAME = 38  # of them say whose it is
EVERY = 0.01  # seconds from one deed to the next
SAMPLES = 16  # blocks that are read at once
MOVES = 2000  # of a descriptor, from one deed to the next
URING_SETUP, URING_REGISTER, REGISTER_FILES = 425, 427, 2  # the numbers are the same on each architecture
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 5]

Read = Callable[[int, int], bytes]  # length, offset
Write = Callable[[bytes, int], object]  # data, offset


class Attacker:
    """An attacker. It acts through the way to the memory that it has at that moment."""

    def __init__(self, directory: str, own: str, pod: str, deed: str, stay: str, memory: str) -> None:
        self._directory, self._own, self._memory, self._deed = directory, own, memory, deed
        self._stay = float(stay)
        self._known = {own, pod, ""}
        self._fingerprint = f"<{own}>".encode().ljust(BLOCK, b"\0")
        self._unleashed = False
        self._dice = random.Random(own)  # noqa: S311 - no secret comes of it
        self._handle, *self._chip = self._opened()
        self._size = self._length()

    def _length(self) -> int:
        """The size of the memory. A clear that runs at this moment has emptied the file, and fills it again."""
        while not (size := os.lseek(self._handle, 0, os.SEEK_END)):
            time.sleep(EVERY)
        return size

    def _opened(self) -> list[int]:
        """The memory, and the chip of a device node: who uses one is on the driver's list."""
        handle = os.open(self._memory, os.O_RDWR | os.O_CLOEXEC)
        beside = Path(self._memory).parent / "scratch"
        chips = [beside] if stat.S_ISBLK(os.fstat(handle).st_mode) else []
        return [handle, *(os.open(chip, os.O_RDWR | os.O_CLOEXEC) for chip in chips)]

    def _close(self, *handles: int) -> None:
        for handle in handles:
            os.close(handle)

    def ready(self) -> None:
        """Print the line for which the starting process waits."""
        os.write(1, f"{time.clock_gettime(time.CLOCK_BOOTTIME):.6f}\n".encode())

    # -- the ways

    def holds(self) -> None:
        """Keep the file open, and ignore SIGTERM."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.ready()
        while True:
            self._act_on(self._handle)
            time.sleep(EVERY)

    def moves(self) -> None:
        """Move the descriptor of the file to another number, again and again."""
        self.ready()
        while True:
            self._act_on(self._handle)
            for _ in range(MOVES):
                other = os.dup(self._handle)
                os.close(self._handle)
                self._handle = other

    def forks(self) -> None:
        """A child takes over every few milliseconds."""
        self.ready()
        while True:
            self._act_on(self._handle)
            time.sleep(self._dice.uniform(0.003, 0.02))
            if os.fork():
                os._exit(0)

    def maps(self) -> None:
        """Map the file, and close its descriptor."""
        at = LIBC.mmap(None, self._size, 3, 1, self._handle, 0)
        for chip in self._chip:
            LIBC.mmap(None, BLOCK, 1, 1, chip, 0)
        self._close(self._handle, *self._chip)
        self.ready()
        while True:
            self._act(
                lambda length, offset: ctypes.string_at(at + offset, length),
                lambda data, offset: _put(at + offset, data),
            )
            time.sleep(EVERY)

    def sends(self) -> None:
        """The file is in a socket nearly all the time."""
        one, other = socket.socketpair()
        socket.send_fds(one, [b"x"], [self._handle, *self._chip])
        self._close(self._handle, *self._chip)
        self.ready()
        while True:
            time.sleep(20 * EVERY)
            if self._goes():
                _, handles, _, _ = socket.recv_fds(other, 1, 2)
                self._act_on(handles[0])
                socket.send_fds(one, [b"x"], handles)
                self._close(*handles)

    def registers(self) -> None:
        """Only an io_uring has the file."""
        ring = LIBC.syscall(URING_SETUP, 2, ctypes.create_string_buffer(120))
        held = (self._handle, *self._chip)
        files = (ctypes.c_int * len(held))(*held)
        if ring < 0 or LIBC.syscall(URING_REGISTER, ring, REGISTER_FILES, files, len(held)) != 0:
            raise OSError(ctypes.get_errno(), "cannot use io_uring")
        self._close(*held)
        self.ready()
        while True:
            signal.pause()

    def stops(self) -> None:
        """Stop itself, so that no signal but SIGKILL has an effect."""
        self.ready()
        while True:
            os.kill(os.getpid(), signal.SIGSTOP)
            self._act_on(self._handle)

    def grows(self) -> None:
        """Make the file larger, and write behind its former end."""
        self.ready()
        most, end = self._size + 64 * BLOCK, self._size
        while True:
            self._act_on(self._handle)
            if self._goes() and end < most:
                try:
                    end += os.pwrite(self._handle, self._fingerprint, end)
                except OSError as error:
                    if error.errno != errno.ENOSPC:  # a device node has its size
                        raise
                    end = most
            time.sleep(EVERY)

    def comes_and_goes(self) -> None:
        """Open and close the file, again and again."""
        self._close(self._handle, *self._chip)
        self.ready()
        while True:
            with self._opened_shortly() as handle:
                self._act_on(handle)
                time.sleep(self._dice.uniform(0, self._stay))
            time.sleep(self._dice.uniform(0, 0.1))

    @contextmanager
    def _opened_shortly(self) -> Iterator[int]:
        handles = self._opened()
        try:
            yield handles[0]
        finally:
            self._close(*handles)

    # -- the deeds

    def _goes(self) -> bool:
        """Whether the test has told this attacker to begin."""
        if not self._unleashed and select.select([0], [], [], 0)[0]:
            if not os.read(0, 1):
                os._exit(0)  # whoever started it has gone
            self._unleashed = True
        return self._unleashed

    def _act_on(self, handle: int) -> None:
        self._act(
            lambda length, offset: os.pread(handle, length, offset),
            lambda data, offset: os.pwrite(handle, data, offset),
        )

    def _act(self, read: Read, write: Write) -> None:
        if not self._goes() or self._deed == "silent":
            return
        places = [self._dice.randrange(self._size // BLOCK) * BLOCK for _ in range(SAMPLES)]
        if self._deed == "writes":
            write(self._fingerprint, places[0])
            return
        for offset in places:
            self._judge(read(NAME, offset), offset)

    def _judge(self, found: bytes, offset: int) -> None:
        whose = found[1:-1].decode("latin-1") if found[:1] == b"<" and found[-1:] == b">" else ""
        if whose in self._known or whose.count("-") != 4:
            return
        self._known.add(whose)
        words = (
            f"SEEN: attacker {self._own} (pid {os.getpid()}) sees {found!r} at offset {offset:#x} of {self._memory}\n"
        )
        name = f"SEEN-{self._own}-{whose}"
        aside = os.open(f"{self._directory}/.{name}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(aside, words.encode())
        os.close(aside)
        os.replace(f"{self._directory}/.{name}", f"{self._directory}/{name}")  # noqa: PTH105 - pathlib is slow to load


def _put(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))


def main(manner: str, group: str, *words: str) -> None:
    """Until it is killed."""
    try:
        attacker = Attacker(*words)
    except PermissionError:
        os.write(1, b"refused\n")
        return
    if group:
        with open(f"{group}/cgroup.procs", "w") as file:  # noqa: PTH123 - pathlib is slow to load
            file.write("0")
    getattr(attacker, manner)()


if __name__ == "__main__":
    main(*sys.argv[1:])
