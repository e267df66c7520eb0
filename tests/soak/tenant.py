"""A tenant that looks for itself: a process that has the memory of its GPUs open, and tells what it should never see.

``python -I -S tenant.py DIRECTORY UID DEEDS [MEMORY ...]`` does its deeds, words in a row:

* ``scan``: all of the memory is zero, or holds its own fingerprint; anything else is told as RESIDUE.
* ``write``: its fingerprint, over all of the memory.
* ``check``: all of the memory is its own; anything else is told as WIPED.
* ``tell``: a line on stdout: it is there. ``wait``: for a line on stdin.
* ``watch``: check again and again until stdin ends, and once more then.

If the kernel does not let it open a memory, it prints ``refused`` and does nothing.

The fingerprint is the pod's, so containers of one pod are no strangers to each other. What it tells is a file in the
directory, there from one moment to the next. It imports almost nothing: many are started in a second.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time

BLOCK = 64  # bytes of the fingerprint; it is written block after block, over all of the memory
EVERY = 0.05  # seconds from one check to the next


def block(uid: str) -> bytes:
    """The fingerprint of a pod."""
    return f"<{uid}>".encode().ljust(BLOCK, b"\0")


def size(handle: int) -> int:
    """Of a memory: a file, or a device node."""
    return os.lseek(handle, 0, os.SEEK_END)


def opened(memory: str) -> list[int]:
    """The memory, and the chip of a device node: who uses one is on the driver's list, who only has it open is not."""
    handle = os.open(memory, os.O_RDWR | os.O_CLOEXEC)
    chips = [f"{os.path.dirname(memory)}/scratch"] if stat.S_ISBLK(os.fstat(handle).st_mode) else []  # noqa: PTH120 - slow
    return [handle, *(os.open(chip, os.O_RDWR | os.O_CLOEXEC) for chip in chips)]


class Tenant:
    """One process on some memories."""

    def __init__(self, directory: str, uid: str, memories: list[str]) -> None:
        self._directory, self._uid = directory, uid
        self._open = {path: opened(path)[0] for path in memories}
        sizes = set(map(size, self._open.values()))
        self._own = {size: block(uid) * (size // BLOCK) for size in sizes}

    def scan(self) -> None:
        """Before anything is written."""
        for path, held in self._memories():
            left = b"" if held.count(0) == len(held) else held.replace(block(self._uid), b"\0" * BLOCK)
            if left.strip(b"\0"):
                self._say("RESIDUE", path, left, len(left) - len(left.lstrip(b"\0")))

    def write(self) -> None:
        """Write all memory with one call, so that a kill leaves whole blocks."""
        for handle in self._open.values():
            own = self._full(size(handle))
            if os.pwrite(handle, own, 0) != len(own):
                raise OSError("cannot write all of the memory")

    def check(self) -> None:
        """Check that the memory holds what this tenant wrote."""
        for path, held in self._memories():
            own = self._full(len(held))
            if held != own:
                at = next(at for at in range(0, len(held), BLOCK) if held[at : at + BLOCK] != own[:BLOCK])
                self._say("WIPED", path, held, at)

    def tell(self) -> None:
        """Print the line for which the starting process waits."""
        os.write(1, b"\n")

    def wait(self) -> None:
        """When nothing comes any more, there is nothing to do."""
        if not os.read(0, 1):
            raise SystemExit

    def watch(self) -> None:
        """Check the memory again and again, until the input has a line or ends."""
        poll = select.poll()
        poll.register(0)
        while not poll.poll(EVERY * 1000):
            self.check()
        self.check()

    def _full(self, size: int) -> bytes:
        """A memory of this size; a process that was left behind can make one larger."""
        return self._own.setdefault(size, block(self._uid) * (size // BLOCK))

    def _memories(self) -> list[tuple[str, bytes]]:
        return [(path, os.pread(handle, size(handle), 0)) for path, handle in self._open.items()]

    def _say(self, what: str, path: str, held: bytes, at: int) -> None:
        name = f"{what}-{self._uid}-{os.getpid()}"
        found = held[at : at + BLOCK]
        words = f"{what}: pod {self._uid} (pid {os.getpid()}) at uptime {time.clock_gettime(time.CLOCK_BOOTTIME):.3f}: "
        aside = os.open(f"{self._directory}/.{name}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(aside, f"{words}{path} holds {found!r} at offset {at:#x}\n".encode())
        os.close(aside)
        os.replace(f"{self._directory}/.{name}", f"{self._directory}/{name}")  # noqa: PTH105 - pathlib is slow to load
        raise SystemExit(1)


def main(directory: str, uid: str, deeds: str, *memories: str) -> None:
    """Do these deeds, one after the other."""
    try:
        tenant = Tenant(directory, uid, list(memories))
    except PermissionError:
        os.write(1, b"refused\n")
        return
    for deed in deeds.split():
        getattr(tenant, deed)()


if __name__ == "__main__":
    main(*sys.argv[1:])
