"""A program of a stage ends with the demo or benchmark that has started it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.patience import WITHIN

STARTS = """
import asyncio, sys
from pathlib import Path
from demo.programs import ServiceProgram

async def main():
    program = ServiceProgram(("--bind", "127.0.0.1", "0"), Path(sys.argv[1]), module="http.server")
    await program.start()
    print(program.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


class Handle:
    """A process, whoever its parent is."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def ends(self) -> bool:
        """Whether it ends within the usual time."""
        return bool(select.select([self._descriptor], [], [], WITHIN)[0])

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_a_program_ends_with_who_started_it(tmp_path: Path, by: signal.Signals) -> None:
    command = [sys.executable, "-c", STARTS, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        with closing(Handle(int(starter.stdout.readline()))) as program:
            starter.send_signal(by)
            assert program.ends()
