"""Our programs as processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ground.errors import FatalError

STOPS_WITHIN = 60.0


@dataclass
class ServiceProgram:
    """One of our programs as a process, and the file with its output."""

    arguments: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)  # added to ours
    module: str = "autoclave"
    process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process id of the running program."""
        if self.process is None:
            raise FatalError(f"{self.arguments[0]} does not run")
        return self.process.pid

    async def start(self) -> None:
        """Start the process; it is not ready yet."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self.module, *self.arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        """Whether no process runs."""
        return self.process is None or self.process.returncode is not None

    async def end(self, number: signal.Signals) -> int | None:
        """Send a signal and wait. Returns the exit status, or None when no process ran."""
        process, self.process = self.process, None
        if process is None or process.returncode is not None:
            return process.returncode if process else None
        process.send_signal(number)
        try:
            return await asyncio.wait_for(process.wait(), STOPS_WITHIN)
        except TimeoutError:
            process.kill()
            return await process.wait()

    def last_words(self) -> str:
        """The last line of the output."""
        output = self.log.read_text(errors="replace").strip().splitlines()
        return output[-1] if output else "no output"
