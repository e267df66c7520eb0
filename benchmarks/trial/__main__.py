"""What a scrub of a real NVIDIA GPU takes and reaches: start-up, passes, proof, what it leaves, one worker's steps.

python -m benchmarks.trial [--output DIR] [--gpu INDEX_OR_UUID] [--rounds N] [--limit BYTES] [--only PART]
                         [--seconds S] [--host-root DIR]

It works on a GPU that nobody uses and refuses any other one. It overwrites its memory and leaves zeros there; it
changes no setting and resets nothing. With ``--limit`` the zeros are as many as any part has written, but not always
in the same place: what is left elsewhere are random bytes of ours. Writes ``<model>-scrub.md`` and ``.json``, with
UUIDs cut short.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.trial import report
from benchmarks.trial.card import Where
from benchmarks.trial.idle import Idle, InUse
from benchmarks.trial.parts import PARTS, Part, measured
from benchmarks.nvml_questions import reads_only
from scrubber.cuda import warmth
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.inventory.boards import Board
from scrubber.devices.nvidia.nvml import Library
from scrubber.node import proc

PROC = Path("/proc")
BUDGET = 400.0  # seconds for all parts ...
A_PART = 120.0  # ... and for one of them
LAST = "zeros"  # is done whatever became of the others ...
KEPT_BACK = 30.0  # ... and has at least so long
GONE_WITHIN = 15.0  # seconds in which a part's memory must be given back


def main(arguments: Sequence[str]) -> int:
    """Measure and write; 1 where a part failed, 2 where nothing was begun."""
    options = _options(arguments)
    host, library = Host(options.host_root, pid_namespace=proc.own_namespace(PROC)), Library()
    idle = Idle(host, library)
    with reads_only():
        try:
            board = _idle_one(idle, options.gpu)
            where = _where(options, board, host)
            about = report.machine(library, host, board.uuid)
        except (DeviceError, InUse) as error:
            sys.stderr.write(f"cannot measure: {error}; run this where an idle NVIDIA GPU, its driver and CuPy are\n")
            return 2
        about["everybody of this pid namespace could be looked into"] = idle.sees_everybody(board)
        parts = list(_parts(idle, board, where, _wanted(options.only)))
    command = shlex.join(["python", "-m", "benchmarks.trial", *arguments])
    print(report.write(options.output, command, about, parts))
    return 1 if any(part.why for part in parts) else 0


def _idle_one(idle: Idle, name: str) -> Board:
    if (lacks := warmth.missing()) is not None:
        raise DeviceError(lacks)
    board = idle.board(name)
    idle.expect_nobody(board)
    return board


def _wanted(only: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(name for name in PARTS if not only or name in (*only, LAST))


def _parts(idle: Idle, board: Board, where: Where, names: Sequence[str]) -> Iterator[Part]:
    """One after the other, each on a GPU that nobody else is on."""
    ends = time.monotonic() + BUDGET
    for name in names:
        left = min(A_PART, ends - time.monotonic() + (KEPT_BACK if name == LAST else 0))
        try:
            idle.wait_for_nobody(board, GONE_WITHIN)
        except (DeviceError, InUse) as error:
            yield _said(Part(name, 0.0, why=f"not begun: {error}"))
            continue
        idle.library.close()  # nothing of the driver's stays open here while it is measured
        if left <= 0:
            yield _said(Part(name, 0.0, why="not begun: no time was left"))
            continue
        sys.stderr.write(f"measuring {name} ...\n")
        yield _said(measured(name, where, left))


def _said(part: Part) -> Part:
    sys.stderr.write(f"{part.name}: {part.why or f'{len(part.figures)} figures'} ({part.seconds:.1f} s)\n")
    return part


def _where(options: argparse.Namespace, board: Board, host: Host) -> Where:
    return Where(
        board.uuid,
        board.pci_address,
        board.minor,
        options.rounds,
        options.limit,
        options.seconds,
        str(host.root.absolute()),
        host.pid_namespace,
    )


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trial", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/measurements"), help="where to write")
    parser.add_argument("--gpu", default="0", metavar="INDEX_OR_UUID", help="which one (default: %(default)s)")
    parser.add_argument("--rounds", type=_some, default=20, metavar="N", help="of each pass (default: %(default)s)")
    parser.add_argument("--limit", type=_some, metavar="BYTES", help="of memory that is taken; default: all")
    parser.add_argument(
        "--only", action="append", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}; default: all"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of the self-test (default: %(default)s)")
    parser.add_argument(
        "--host-root", type=Path, default=Path("/"), help="where the host's /dev, /proc and /sys are seen"
    )
    return parser.parse_args(arguments)


def _some(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not enough")
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
