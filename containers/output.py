"""What a command writes, read as it comes: the command never waits for its reader, and the reader only for a time."""

from __future__ import annotations

import os
import selectors
import subprocess

LONGEST = 2**16  # bytes of a line, and of what is read at once: all that a pipe holds
_LAST_WORDS = 2**12  # bytes of stderr that are kept


class Output:
    """Stdout, line by line; the end of stderr; and whether the process has ended."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Both are pipes."""
        assert process.stdout is not None  # noqa: S101 -- see above
        assert process.stderr is not None  # noqa: S101 -- see above
        self.complete = False  # nothing more comes on stdout
        self.last_words = b""
        self._lines = b""
        self._stdout, self._stderr = process.stdout, process.stderr
        self._process = os.fdopen(os.pidfd_open(process.pid), "rb", buffering=0)
        self._ready = selectors.DefaultSelector()
        for each in (self._stdout, self._stderr, self._process):
            self._ready.register(each, selectors.EVENT_READ)

    def line(self) -> bytes | None:
        """The next line of stdout; None if it is not whole yet."""
        line, end, rest = self._lines.partition(b"\n")
        if not end:
            return None
        self._lines = rest
        return line

    @property
    def too_long(self) -> bool:
        """A line, or what was said without a question, is longer than any answer. No more of it is read."""
        return len(self._lines) > LONGEST

    def read(self, within: float) -> bool:
        """Read what is there, or else the first that comes in this time; whether anything did."""
        ready = self._ready.select(max(0.0, within))
        for key, _ in ready:
            piece = b"" if key.fileobj is self._process else os.read(key.fd, LONGEST)
            if key.fileobj is self._stdout:
                self._lines += piece
                self.complete = not piece
            elif key.fileobj is self._stderr:
                self.last_words = (self.last_words + piece)[-_LAST_WORDS:]
            if not piece or (key.fileobj is self._stdout and self.too_long):
                self._ready.unregister(key.fileobj)
        return bool(ready)

    def close(self) -> None:
        """Close the pipes."""
        self._ready.close()
        for each in (self._stdout, self._stderr, self._process):
            each.close()
