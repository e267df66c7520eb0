"""A stage leaves nothing behind, however the program that has it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import WITHIN

PROGRAM = """
import asyncio
from demo.stage import Stage, run
async def main():
    stage = Stage(1, memory="1MiB")
    try:
        await stage.start()
        await stage.start_node()
        print(stage.service.pid, flush=True)
        await asyncio.Event().wait()
    finally:
        await stage.clear_away(keep=False)
run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_programs_of_a_stage(short_tmp: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "TMPDIR": str(short_tmp)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environment
    ) as program:
        assert program.stdout is not None
        service = int(program.stdout.readline())
        program.send_signal(number)
        assert program.wait(WITHIN) != 0
    assert not Path(f"/proc/{service}").exists()
    assert list(short_tmp.iterdir()) == []
