"""Try Autoclave on a real NVIDIA GPU in nine minutes: facts, the whole service, times, faults, tests.

python -m benchmarks.trial [--output DIR] [--gpu INDEX_OR_UUID] [--rounds N] [--limit BYTES] [--only PART]
                           [--within SECONDS] [--beside PATH] [--fresh] [--host-root DIR]

The trial works on a GPU that no process uses, and refuses any other one. It needs no network. It overwrites the memory
of the GPU and leaves zeros there. It resets nothing and changes no setting. With --limit, only so much of the memory
is zero afterwards, and other parts of it may hold random bytes. The trial keeps the node of the GPU open, so that the
driver does not set the GPU up anew for each process; two parts run without that (opens, service).

Each part runs in a process of its own, and ends with the trial. After a part that fails, the trial goes on. The parts
share the time that is left (--within). No part begins that would not get half of what it needs. Each figure is in
MODEL.jsonl as soon as it is known, and at the end in MODEL.md, beside what was predicted of it; UUIDs are cut short
there. MODEL-evidence holds what the parts and the service said, with whole UUIDs. A trial that was ended goes on where
it was: parts that are done are not done again, unless --fresh is given. Packages that the trial needs are listed in
benchmarks/trial/packages.txt.

Exit code: 0 all parts passed or cannot be done here, 1 a part failed or no time was left for it, 2 nothing was begun.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from benchmarks.nvml_questions import reads_only
from benchmarks.trial import report
from benchmarks.trial.card import Where
from benchmarks.trial.figures import Part
from benchmarks.trial.parts import LAST, PARTS, WITHIN, time_for
from benchmarks.trial.records import Records
from benchmarks.trial.running import run
from benchmarks.trial.tree import tree
from remnant.idle import IdleObserver, InUse
from scrubber.cuda import cupy_loading
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.boards import Board
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library
from scrubber.node import proc

ROOT = Path(__file__).parents[2]
PROC = Path("/proc")
_OWN_PROCESSES = "give the trial its own: unshare --pid --fork --mount-proc --kill-child python3 -m benchmarks.trial"
GONE_WITHIN = 15.0  # seconds in which a part's memory must be given back


def main(arguments: Sequence[str]) -> int:
    """Run the parts that are missing, and write the page after each."""
    options = _options(arguments)
    ends = time.monotonic() + options.within
    signal.signal(signal.SIGTERM, _end)
    host, library = Host(options.host_root, pid_namespace=proc.own_namespace(PROC)), Library()
    idle = IdleObserver(host, library, tuple(options.beside))
    held = HeldNode()
    with reads_only():
        try:
            board = _idle_one(idle, options.gpu)
            held.path = host.dev / board.node
            held.open()
            about = report.machine(library, host, board.uuid)
            about["programs that have the GPU open meanwhile"] = ", ".join(idle.bystanders(board)) or "none"
            counters = report.counters(library, board.uuid)
        except (DeviceError, InUse, OSError) as error:
            sys.stderr.write(f"cannot begin: {error}; run this where an idle NVIDIA GPU, its driver and CuPy are\n")
            return 2
        everybody = about["the processes of this pid namespace can all be read"] = idle.sees_everybody(board)
        if not everybody:
            sys.stderr.write(f"service and pods will fail, as not every process can be read: {_OWN_PROCESSES}\n")
    about["command"] = shlex.join(["python", "-m", "benchmarks.trial", *arguments])
    records = _records(options, about | {report.COUNTERS: counters})
    where = _where(options, board, host, records)
    missing = [name for name in records.missing() if name != LAST and (not options.only or name in options.only)]
    order = (*missing, LAST)
    try:
        for number, name in enumerate(order):
            left = max(ends - time.monotonic(), PARTS[LAST].seconds if name == LAST else 0)
            seconds = time_for(name, order[number + 1 :], left)
            if seconds is not None:
                _said(_part(name, idle, held, board, where, seconds, records))
                report.write(records)
    finally:
        report.write(records)
    print(records.page)
    failed = [part.name for part in records.parts() if part.why]
    not_begun = [name for name in missing if name in records.missing() and name not in failed]
    if not_begun:
        sys.stderr.write(f"no time was left for {', '.join(not_begun)}; the same command goes on with them\n")
    return 1 if failed or not_begun else 0


def _records(options: argparse.Namespace, about: dict[str, object]) -> Records:
    """The file of this GPU; a new one if there is none, or if that is asked for."""
    records = Records.of(options.output, str(about["model"]), tree(ROOT))
    if options.fresh or records.machine() is None:
        records.begin(about)
    return records


def _idle_one(idle: IdleObserver, name: str) -> Board:
    if (lacks := cupy_loading.missing()) is not None:
        raise DeviceError(lacks)
    board = idle.board(name)
    idle.expect_no_holder(board)
    return board


class HeldNode:
    """The node of the GPU, which this process has open during most parts.

    So the driver sets the GPU up once. Without persistence mode it would do so whenever nobody else has it open.
    """

    path = Path()
    _file: int | None = None

    def open(self) -> None:
        """Have it open from now on."""
        if self._file is None:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Have it open no longer."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _part(
    name: str, idle: IdleObserver, held: HeldNode, board: Board, where: Where, seconds: float, records: Records
) -> Part:  # fmt: skip
    """Run one part, on a GPU that no process uses."""
    try:
        idle.wait_until_free(board, GONE_WITHIN)
    except (DeviceError, InUse) as error:
        records.begin_part(name)
        records.end_part(name, 0.0, f"not begun: {error}")
        return records.part(name)
    (held.open if PARTS[name].held else held.close)()
    idle.library.close()  # this process must not have NVML open while the part measures
    sys.stderr.write(f"{name} ...\n")
    return run(name, where, seconds, records)


def _said(part: Part) -> None:
    done = part.not_done and f"cannot be done here: {part.not_done}"
    sys.stderr.write(f"{part.name}: {part.why or done or f'{len(part.figures)} figures'} ({part.seconds:.1f} s)\n")


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit("the trial was ended")


def _where(options: argparse.Namespace, board: Board, host: Host, records: Records) -> Where:
    counters = (records.machine() or {}).get(report.COUNTERS)
    return Where(
        board.uuid,
        board.pci_address,
        board.minor,
        options.rounds,
        options.limit,
        str(host.root.absolute()),
        host.pid_namespace,
        str(options.output.absolute()),
        beside=tuple(options.beside),
        holder=os.getpid(),
        counters=counters if isinstance(counters, dict) else {},
    )


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trial", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/trial"), help="where to write (default: %(default)s)"
    )
    parser.add_argument("--gpu", default="0", metavar="INDEX_OR_UUID", help="which GPU (default: %(default)s)")
    parser.add_argument("--rounds", type=_number, default=20, metavar="N", help="of each pass (default: %(default)s)")
    parser.add_argument("--limit", type=_number, metavar="BYTES", help="take no more memory; default: all")
    parser.add_argument(
        "--only", action="append", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}; default: all"
    )
    parser.add_argument(
        "--within", type=float, default=WITHIN, metavar="SECONDS", help="for all parts (default: %(default)g)"
    )
    parser.add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="PATH",
        help="the program of a daemon that may have the GPU open; may be repeated",
    )
    parser.add_argument("--fresh", action="store_true", help="forget the parts that are done, and begin anew")
    parser.add_argument(
        "--host-root", type=Path, default=Path("/"), help="where the host's /dev, /proc and /sys are (default: /)"
    )
    return parser.parse_args(arguments)


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number
