"""``make observe``: a node that has one bad day after the other, and a Prometheus that scrapes it, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from demo.bad_day import day
from demo.bad_day.day import DAY, EVENING, Act
from demo.bad_day.node import GPUS, LOOPBACK, TrialNode
from demo.bad_day.prometheus import Prometheus, installed
from ground.errors import AutoclaveError, FatalError

FOLDER = Path(__file__).parents[2] / "dashboards" / "grafana"
PORT = 19475  # the first of three ports
LASTS = 20.0  # seconds
DAYS = 2  # of one node: a GPU that comes back from quarantine ten times within a week waits for an operator
EVERY = 1.0
MISSING = """
Prometheus is not installed: the metrics are there, but nothing collects them.
  Debian, Ubuntu: apt install prometheus (then: systemctl disable --now prometheus, unless you want its service)
"""
GRAFANA = """
In Grafana (12 or newer):
  1. Connections, Add new connection, Prometheus; URL http://{address}
  2. Dashboards, New, Import, Upload: each file in {folder}
  3. Open Autoclave / Fleet; its menu links to the other pages
docs/observability.md describes the pages and finds three faults with them.
"""


async def observe(port: int, seconds: float) -> None:
    """Play the day again and again until cancelled, after some days on a new node. An alert fires after one second."""
    async with AsyncExitStack() as ends:
        prometheus: Prometheus | None = None
        while True:
            async with running_node(port) as node:
                if prometheus is None:
                    prometheus = Prometheus(port + 2, EVERY)
                    ends.push_async_callback(prometheus.clear_away)
                    await show(prometheus, node)
                with cut_short():
                    for _ in range(DAYS):
                        await day.play(node, (*DAY, EVENING), partial(wait, seconds), say)


@asynccontextmanager
async def running_node(port: int) -> AsyncIterator[TrialNode]:
    """A node, which is removed afterwards. Says where it is."""
    async with AsyncExitStack() as ends:
        node = TrialNode(port)
        ends.push_async_callback(node.clear_away)
        await node.start_node()
        run_dir = node.stage.root / "run"
        tell(f"A node of {GPUS} simulated GPUs; its run directory is {run_dir}")
        tell(f"  look at it     .venv/bin/autoclave status --watch --run-dir {run_dir}")
        tell(f"  scrub service  http://{node.service}/metrics")
        tell(f"  device plugin  http://{node.plugin}/metrics")
        yield node


async def show(prometheus: Prometheus, node: TrialNode) -> None:
    """Start Prometheus, if it is installed, and say how to look at the pages."""
    if not installed():
        tell(MISSING)
        return
    await prometheus.start(node)
    tell(f"  Prometheus     http://{prometheus.address}/alerts")
    tell(GRAFANA.format(address=prometheus.address, folder=FOLDER))


@contextmanager
def cut_short() -> Iterator[None]:
    """Say that an act failed, as on a machine that is too slow for it. A node in the middle of an act is of no use."""
    try:
        yield
    except (AutoclaveError, TimeoutError) as error:
        say(f"this act failed, perhaps because the machine is slow: {error}")
        tell("          a new node takes the place of this one; the day begins again")


async def wait(seconds: float, acts: Sequence[Act]) -> None:
    """Let each problem last for a while, so that people can see it on the pages."""
    alerts = ", ".join(alert for act in acts for alert in act.alerts)
    if alerts:
        tell(f"          fires: {alerts}")
    await asyncio.sleep(seconds)


def say(line: str) -> None:
    """Print a line with the time."""
    tell(f"{time.strftime('%H:%M:%S')}  {line}")


def tell(line: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """On a signal, cancel this task only: the tasks that it started are needed for the cleanup."""
    task = asyncio.create_task(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await task


def main(arguments: list[str]) -> int:
    """Run the command. Ctrl-C and SIGTERM end it with exit status 0, after the cleanup."""
    parser = argparse.ArgumentParser(prog="make observe ARGS=...", description=__doc__)
    parser.add_argument(
        "--port", type=int, default=PORT, help=f"the first of three ports on {LOOPBACK} (default: {PORT})"
    )
    parser.add_argument("--lasts", type=float, default=LASTS, help=f"seconds for each problem (default: {LASTS:g})")
    chosen = parser.parse_args(arguments)
    try:
        asyncio.run(_until_interrupted(observe(chosen.port, chosen.lasts)))
    except asyncio.CancelledError:
        tell("ended; everything is cleaned up")
    except (AutoclaveError, FatalError, TimeoutError) as error:
        sys.stderr.write(f"cannot continue: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
