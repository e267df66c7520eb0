"""How long starts take, as JSON. Benchmarks.image runs it inside the image and outside, as ``python -c``."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Awaitable
from pathlib import Path

from demo.programs import ServiceProgram
from demo.stage import Stage, run

TIMES = 5
GPUS = 8
COMMANDS = {"`autoclave --version`": ["--version"], "`autoclave --help`": ["--help"]}


def starts() -> dict[str, object]:
    """Each start several times: seconds on the clock, and of processor time where the process ends by itself."""
    autoclave = str(Path(sys.executable).parent / "autoclave")
    found = {name: [_command([autoclave, *command]) for _ in range(TIMES)] for name, command in COMMANDS.items()}
    return {"python": sys.version.split()[0], "starts": found | run(_programs())}


def _command(command: list[str]) -> tuple[float, float]:
    nowhere = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    began = time.perf_counter()
    _, status, used = os.wait4(os.posix_spawn(command[0], command, os.environ, file_actions=[nowhere]), 0)
    if status != 0:
        raise RuntimeError(f"{command} failed")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


async def _programs() -> dict[str, list[tuple[float, float]]]:
    """The service to its first answer, whose ledger knows its devices already; the plugin until it is registered."""
    service, plugin = [], []
    stage = Stage(GPUS, memory="1MiB", policy="fast")
    try:
        await stage.start()
        for _ in range(TIMES):
            await stage.service.end(signal.SIGTERM)
            service.append(await _timed(stage.start(), stage.service))
            plugin.append(await _timed(stage.start_node(), stage.plugin))
            await stage.plugin.end(signal.SIGTERM)
            await stage.kubelet.kill()
    finally:
        await stage.clear_away(keep=False)
    return {"service to its first answer": service, "plugin until it is registered": plugin}


async def _timed(start: Awaitable[object], program: ServiceProgram) -> tuple[float, float]:
    began = time.perf_counter()
    await start
    return time.perf_counter() - began, _processor_time(program.pid)


def _processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    print(json.dumps(starts()))
