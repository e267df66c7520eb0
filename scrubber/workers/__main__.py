"""The worker child: one device, one step at a time, until the service hangs up.

It starts for every scrub, so it imports little. It lives as long as its stdin: when the service is gone, so is the
child, at once and in the middle of whatever it does. Any error that is not the device's ends it with a traceback.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from scrubber.core.model import Holder
from scrubber.devices import roster as devices
from scrubber.devices.base import DeviceNode
from scrubber.node.bystanders import Bystander, Bystanders
from scrubber.node.cgroups import Containers
from scrubber.node.processes import Processes
from scrubber.steps import roster
from scrubber.steps.base import Bench
from scrubber.workers import worker_wire

_BETWEEN_PROGRESS = 0.05
_CUT_OFF = 3  # exit status when the service hung up in the middle of a step


def main() -> None:
    """Serve one service over stdin and stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a terminal is for the service, which will tell us
    mother = os.getppid()  # of all workers, and of none but them: the service may be the first process of its node
    lines, answers = open(0, "rb", closefd=False), _answers()  # noqa: SIM115 -- for the life of the process
    assignment = worker_wire.assignment(lines.readline())
    proc = Path("/proc")
    container_of = devices.container_of(assignment.address) or Containers(proc, assignment.pid_namespace).of
    observer = Processes(
        proc, container_of, full_sight=assignment.full_sight, namespace=assignment.pid_namespace
    )  # fmt: skip
    known = Bystanders(tuple(map(Bystander.said, assignment.bystanders)), proc, Path(assignment.pod_logs))

    def holders() -> tuple[Holder, ...] | None:
        return observer.holders({"device": assignment.files}, (assignment.service,), known.knows)["device"]

    def hit_by_a_reset() -> tuple[Holder, ...] | None:
        """Everybody: bystanders, and the service, which has let go of it if all is well."""
        return observer.holders({"device": assignment.reach})["device"]

    def ours(pid: int) -> bool:
        return observer.descends(pid, (mother,))

    node = DeviceNode(hit_by_a_reset, lambda name: known.runs(name, container_of))
    bench = Bench(devices.open_gpu(assignment.address, node), holders, _progress(answers), ours)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_listen, args=(lines, tasks, busy), daemon=True).start()
    while True:
        task = worker_wire.task(tasks.get())
        busy.set()
        report = roster.perform(task.step, task.order, bench)
        busy.clear()
        _say(answers, worker_wire.Answer(report=report))


def _answers() -> BinaryIO:
    # A library that prints would break the frames: whatever is printed from here on goes to stderr.
    # Never closed by us, so that the service hears the end only when our exit status stands.
    answers = os.fdopen(os.dup(1), "wb", closefd=False)
    os.dup2(2, 1)
    return answers


def _listen(lines: BinaryIO, tasks: queue.SimpleQueue[bytes], busy: threading.Event) -> None:
    for line in lines:
        tasks.put(line)
    os._exit(_CUT_OFF if busy.is_set() else 0)


def _say(answers: BinaryIO, answer: worker_wire.Answer) -> None:
    answers.write(worker_wire.encode(answer))
    answers.flush()


def _progress(answers: BinaryIO) -> Callable[[int, int], None]:
    said = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal said
        if done < total and time.monotonic() < said + _BETWEEN_PROGRESS:
            return
        said = time.monotonic()
        _say(answers, worker_wire.Answer(progress=(done, total)))

    return progress


if __name__ == "__main__":
    main()
