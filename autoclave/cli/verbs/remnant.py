"""``autoclave remnant``: what does the next container see of the last one?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import click
import pynvml

from autoclave.cli import DONE, ENVIRONMENT, INTERRUPTED, NOT_CLEAN, human, options
from autoclave.remnant import judge, local, report
from autoclave.remnant.idle import IdleObserver, InUse
from autoclave.remnant.judge import Verdict
from autoclave.remnant.model import Ending, GpuAndDriver, Medium, Result, Round
from ground import calendar_time
from ground.errors import FatalError
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.boards import Board
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library
from scrubber.node import clock, proc

PROC = Path("/proc")
FREED_WITHIN = 30.0  # seconds until nobody has the GPU after a round
BAD = frozenset({Verdict.REMNANT, Verdict.NO_ANSWER})


class RemnantOptions(TypedDict):
    """What is tried, and who may watch."""

    ending: tuple[Ending, ...]
    medium: tuple[Medium, ...]
    beside: tuple[Path, ...]


@click.group(context_settings=ENVIRONMENT)
def remnant() -> None:
    """Find out what the next container sees of the last one on a GPU.

    It needs no service of Autoclave, and tests a GPU of a node with or without one.

    A first container fills the GPU with words of a secret key, and ends. The next one looks for these words before it
    writes anything. The words tell what a container has left from what was there anyway.
    """


@remnant.command(context_settings=ENVIRONMENT)
@click.option(
    "--on",
    type=click.Choice(["local"]),
    default="local",
    help="Where the containers run. local: two processes of this machine.",
)
@click.option("--gpu", default="0", metavar="INDEX_OR_UUID", help="The GPU. No process may use it.")
@click.option("--rounds", type=options.IntRange(1, 1000), default=20, help="How often each ending is tried.")
@click.option(
    "--ending",
    type=options.Words(Ending),
    multiple=True,
    help="How the first container ends; can be repeated. Default: all.",
)
@click.option(
    "--medium",
    type=options.Words(Medium),
    multiple=True,
    help="Where words are planted; can be repeated. Default: all.",
)
@click.option(
    "--beside",
    type=options.PATH,
    multiple=True,
    help="A program that may have the GPU open, because it only watches; can be repeated.",
)
@click.option(
    "--to",
    type=options.PATH,
    help="A new directory for the result. Default: remnant-DATE-TIME here.",
)
@click.option(
    "--host-root", type=options.DIRECTORY, default="/", help="Where this process sees the host's root directory."
)
def run(on: str, gpu: str, rounds: int, to: Path | None, host_root: Path, **chosen: Unpack[RemnantOptions]) -> int:
    """Plant words on a GPU, hand it over, look for them, and write a report.

    Overwrites all memory of the GPU, leaves zeros there, and changes no setting. Refuses a GPU that a process uses.
    Needs root, to see all processes. Writes report.md, report.svg and result.json, also after Ctrl-C: what was done by
    then counts. Exit code 1 if words of the first container were found, or if the test gives no answer.
    """
    host, library = Host(host_root, pid_namespace=proc.own_namespace(PROC)), Library()
    idle = IdleObserver(host, library, tuple(map(str, chosen["beside"])))
    began = calendar_time.utc(clock.now().wall)
    try:
        board = idle.board(gpu)
        idle.expect_no_holder(board)
        about = _about(board, host, library)
    except (InUse, DeviceError) as error:
        raise FatalError(f"cannot use GPU {gpu}: {error}") from error
    finally:
        library.close()
    place = to or Path(f"remnant-{began:%Y%m%d-%H%M%S}")
    try:
        place.mkdir()
    except OSError as error:
        raise FatalError(f"cannot write to {place}: {error.strerror}") from error
    plan = tuple(local.rounds(chosen["ending"] or tuple(Ending), rounds))
    media = chosen["medium"] or tuple(Medium)
    done, why = _rounds(idle, plan, lambda how: local.run_round(board, host_root, how, media), board)
    result = Result(on, f"{began:%Y-%m-%d %H:%M:%S} UTC", about, tuple(done), why)
    if not done:
        place.rmdir()
        raise FatalError(f"cannot test GPU {gpu}: {why}")
    files = report.write(place, result)
    cells = judge.cells(result)
    human.say(*report.summary(result, cells), *map(str, files))
    if why == _INTERRUPTED:
        return INTERRUPTED
    return NOT_CLEAN if why or any(cell.verdict in BAD for cell in cells) else DONE


_INTERRUPTED = "it was interrupted"


def _rounds(
    idle: IdleObserver, plan: Sequence[Ending], ending: Callable[[Ending], Round], board: Board
) -> tuple[list[Round], str]:
    """The rounds that were done, and why they are not all."""
    done: list[Round] = []
    began = time.monotonic()
    try:
        for number, how in enumerate(plan):
            left = (time.monotonic() - began) / number * (len(plan) - number) if number else None
            about = "" if left is None else f", about {human.span(left)} left"
            click.echo(f"round {number + 1} of {len(plan)}: {how.value}{about}", err=True)
            done.append(ending(how))
            idle.wait_until_free(board, FREED_WITHIN)
            idle.library.close()
    except KeyboardInterrupt:
        return done, _INTERRUPTED
    except (local.ContainerFailed, InUse, DeviceError) as error:
        return done, str(error)
    return done, ""


def _about(board: Board, host: Host, library: Library) -> GpuAndDriver:
    with library.session() as nvml:
        mode = nvml.ask_optional(pynvml.nvmlDeviceGetPersistenceMode, nvml.handle(board.uuid))
    persistence = None if mode is None else mode == pynvml.NVML_FEATURE_ENABLED
    return GpuAndDriver(board.uuid, board.model, host.driver_version(), board.memory_bytes, board.ecc, persistence)
