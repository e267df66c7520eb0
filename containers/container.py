"""One container behind a command that passes its words on, such as `docker run` or `kubectl logs`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from containers.commands import ContainerFailed, run
from containers.output import LONGEST, Output
from ground.errors import plain

GONE_WITHIN = 30.0
SAYS_AFTER = 5.0  # seconds, and then as often: what a container that does not start waits for
NO_REASON = ("pod ", "Run 'docker")  # so begin last lines of kubectl and docker, which say why in a line before


class Container:
    """Hears a container line by line, and leaves nothing of it."""

    says_after = SAYS_AFTER

    def __init__(self, command: Sequence[str], remove: Sequence[str] | None = None) -> None:
        """``remove``: the command that removes the container in whatever state it is; None: nothing is left of it."""
        self._remove = remove
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            restore_signals=False,  # if this process is killed, the command must be able to clear away
        )
        self._output = Output(self._process)
        self._cleared = False

    def tell(self, line: str) -> None:
        """Send the container a line."""
        assert self._process.stdin is not None  # noqa: S101 -- a pipe, see above
        with suppress(BrokenPipeError):  # it has ended: what it said by then comes next
            self._process.stdin.write(line.encode() + b"\n")

    def hear(self, within: float, silent: Callable[[], str] = str) -> bytes:
        """Its next line; ContainerFailed if there is none in time, or one that never ends.

        ``silent``: called again and again while the container says nothing; what it waits for, or nothing.
        """
        ends, waits = time.monotonic() + within, ""
        while (line := self._output.line()) is None:
            if self._output.complete:
                raise self._failed()
            if self._output.too_long:
                raise ContainerFailed(f"a container said more than {LONGEST} bytes, and no answer")
            if (left := ends - time.monotonic()) <= 0:
                raise ContainerFailed(f"a container gave no answer within {within:g} s{waits and f': {waits}'}")
            if not self._output.read(min(left, self.says_after)):
                waits = silent() or waits
        return line

    @property
    def status(self) -> int | None:
        """The exit status of its command; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill the command: one whose pod is deleted may wait for ever."""
        self._process.kill()

    def wait(self) -> None:
        """Wait until the command has ended; ContainerFailed if it does not."""
        ends = time.monotonic() + GONE_WITHIN
        while self._process.poll() is None:
            if (left := ends - time.monotonic()) <= 0:
                raise ContainerFailed(f"process {self._process.pid} did not end within {GONE_WITHIN:g} s")
            self._output.read(left)

    def clear_away(self) -> None:
        """Leave nothing of it, however far it has come."""
        if self._cleared:
            return
        if self._process.poll() is None:
            self._process.kill()
        self.wait()
        assert self._process.stdin is not None  # noqa: S101 -- a pipe, see above
        self._process.stdin.close()
        self._output.close()
        if self._remove is not None:
            run(self._remove)
        self._cleared = True

    def _failed(self) -> ContainerFailed:
        self._process.kill()
        self.wait()
        self._output.read(0)
        said = self._output.last_words.decode(errors="replace").split("\n")
        lines = [line for line in said if line and not line.startswith(NO_REASON)]
        last = plain(lines[-1]) if lines else "it wrote nothing"
        return ContainerFailed(f"a container ended with status {self._process.returncode}: {last}")
