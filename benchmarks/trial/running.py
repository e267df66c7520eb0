"""Runs a part in a process of its own: a part that fails does not end the others, and none outlives the trial.

``python -m benchmarks.trial.running NAME LINE`` is such a process. It reads its GPU from stdin, and writes its figures
to stdout. It forks: the child measures; the parent, the keeper, says on LINE how the child ended. If the trial ends,
whatever ends it, the keeper kills the whole group of processes, which gives back the memory of the GPU.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType
from typing import IO

from benchmarks.trial.card import Where
from benchmarks.trial.figures import NotDone, Part, Unproven
from benchmarks.trial.parts import GRACE, PARTS
from benchmarks.trial.records import Records, Writer
from scrubber.cuda import cupy_loading
from scrubber.workers.zygote import end_with_parent

ROOT = Path(__file__).parents[2]
_SHARE = 0.9  # of its time limit that a part plans with
_LAST_WORDS = 400  # characters of the output of a failed process, on the page; all of it is in the evidence
_STOP = b"stop"


def run(name: str, where: Where, seconds: float, records: Records) -> Part:
    """Run a part in a new process with a time limit; what it finds is in the records then.

    The limit contains what a part that is late takes to save what it has.
    """
    began, grace = time.monotonic(), min(GRACE, seconds / 3)
    seconds -= grace
    records.begin_part(name)
    said = records.errors.stat().st_size
    told = {**asdict(where), "evidence": str(records.evidence), "ends": began + _SHARE * seconds}
    with TemporaryFile("w+") as order, records.path.open("ab") as figures, records.errors.open("ab") as errors:
        json.dump(told, order)
        order.seek(0)
        status = _status(name, (order, figures, errors), seconds, grace)
    if status is None:
        records.end_part(name, time.monotonic() - began, f"it was not done within {seconds:.0f} s")
    elif status:
        last = records.errors.read_bytes()[said:].decode(errors="replace").strip().rpartition("\n")[2][-_LAST_WORDS:]
        words = f"it ended with status {status}: {last or 'it said nothing'}"
        records.end_part(name, time.monotonic() - began, words)
    return records.part(name)


def _status(name: str, files: tuple[IO[str], IO[bytes], IO[bytes]], seconds: float, grace: float) -> int | None:
    """The exit status of the part; None if it was late. No process of it is left."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "benchmarks.trial.running", name, str(theirs.fileno())]
    order, figures, errors = files
    with ours:
        with theirs:
            keeper = subprocess.Popen(
                command,
                cwd=ROOT,
                env=_environment(os.environ),
                stdin=order,
                stdout=figures,
                stderr=errors,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        try:
            if (word := _received(ours, seconds)) is not None:
                return int(word or -signal.SIGKILL)  # nothing is said by a keeper that was killed
            ours.send(_STOP)
            _received(ours, grace)
            return None
        finally:
            os.killpg(keeper.pid, signal.SIGKILL)  # before it is reaped: until then no other process has its number
            keeper.wait()


def _received(line: socket.socket, seconds: float) -> bytes | None:
    poll = select.poll()
    poll.register(line, select.POLLIN)
    return line.recv(64) if poll.poll(1000 * seconds) else None


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """The environment of a part. Its processes find the checkout: a zygote does not search its working directory."""
    path = os.pathsep.join(filter(None, (str(ROOT), ours.get("PYTHONPATH"))))
    return {**ours, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}


def main(name: str, line: socket.socket) -> None:
    """Run as the process of a part."""
    part = os.fork()
    if part:
        _keep(part, line)
    else:
        line.close()
        _measure(name)


def _keep(part: int, line: socket.socket) -> None:
    """Wait for the end of the part; end it when the trial says so, and all processes when the trial is gone."""
    threading.Thread(target=_obey, args=(part, line), daemon=True).start()
    _, status = os.waitpid(part, 0)
    with suppress(OSError):  # the trial is gone, and the other thread kills this process
        line.send(str(os.waitstatus_to_exitcode(status)).encode())
    signal.pause()  # until it is killed: till then the group has its number


def _obey(part: int, line: socket.socket) -> None:
    with suppress(OSError):
        while line.recv(64) == _STOP:
            with suppress(ProcessLookupError):
                os.kill(part, signal.SIGTERM)
    os.killpg(0, signal.SIGKILL)


def _measure(name: str) -> None:
    """Write figure after figure, then the end. All other output goes to stderr."""
    end_with_parent()  # should the keeper be killed alone
    signal.signal(signal.SIGTERM, _end_early)
    writer, began = Writer(os.dup(1), name), time.monotonic()
    os.dup2(2, 1)
    where = Where(**json.load(sys.stdin))
    why, not_done, measure = "", "", PARTS[name].measure
    try:
        cupy_loading.warm()  # as in a worker, and in the processes that are forked from here
        for figure in measure(where):
            writer.add(figure)
    except (Unproven, cupy_loading.UnusableError) as error:
        why = str(error)
    except NotDone as error:
        not_done = str(error)
    writer.end(time.monotonic() - began, why, not_done)


def _end_early(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit("it was late and has been ended")


if __name__ == "__main__":
    main(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
