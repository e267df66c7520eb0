"""A stage leaves nothing behind, however the program that has it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


CLEARS = """
import asyncio, sys
from demo.stage import run
async def main():
    try:
        print("runs", flush=True)
        await asyncio.Event().wait()
    finally:
        told = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, told.set)
        print("clears", flush=True)
        await told.wait()
        print("cleared", flush=True)
run(main())
"""


@contextmanager
def clearing() -> Iterator[subprocess.Popen[str]]:
    """A program that got two signals, and clears away until it reads a line."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", CLEARS], text=True, **pipes) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        for word in ("runs", "clears"):
            assert program.stdout.readline() == f"{word}\n"
            program.send_signal(signal.SIGTERM)
        assert program.stderr.readline().startswith("still clearing away the programs, loop devices")
        yield program


def test_a_second_signal_does_not_interrupt_the_clearing() -> None:
    with clearing() as program:
        assert program.communicate("\n", WITHIN)[0] == "cleared\n"


def test_a_third_signal_ends_the_clearing_at_once() -> None:
    with clearing() as program:
        program.send_signal(signal.SIGINT)
        assert program.wait(WITHIN) == -signal.SIGINT


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
