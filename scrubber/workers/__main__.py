"""The program of a worker: reads requests from stdin and runs steps on one device, until the service closes it.

The worker ends at once when its stdin is closed, even in the middle of a step. An error that is not an error of the
device ends the worker with a traceback.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from ground.documents import strict_json
from scrubber.core.model import Holder
from scrubber.devices import roster as devices
from scrubber.devices.base import DeviceNode
from scrubber.node.bystanders import Bystander, Bystanders
from scrubber.node.node_containers import Containers
from scrubber.node.pods import PodNames
from scrubber.node.processes import Processes
from scrubber.node.sandboxes import Sandboxes
from scrubber.steps import step_functions
from scrubber.steps.orders import StepContext
from scrubber.workers import wire

_BETWEEN_PROGRESS = 0.05
_CANCELLED = 3  # exit status when the service closed stdin in the middle of a step


def main() -> None:
    """Run steps for one scrub service, which talks to this process over stdin and stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a terminal is for the service, which then closes stdin
    zygote = os.getppid()  # the parent of workers only; the service may be the first process of its pid namespace
    lines = open(0, "rb", closefd=False)  # noqa: SIM115 -- for the life of the process
    # A library that prints would break the protocol: what is printed from here on goes to stderr.
    # Never closed here, so that the service sees the end of the output only when the exit status is known.
    answers = os.fdopen(os.dup(1), "wb", closefd=False)
    os.dup2(2, 1)
    assignment = strict_json.decode(wire.Assignment, lines.readline())
    proc = Path("/proc")
    container_of = devices.container_of(assignment.address) or Containers(proc, assignment.pid_namespace).of
    observer = Processes(
        proc, container_of, whole_node=assignment.whole_node, namespace=assignment.pid_namespace
    )  # fmt: skip
    names = PodNames(Sandboxes(Path(assignment.host_root)), Path(assignment.pod_logs))
    bystanders = Bystanders(tuple(map(Bystander.parse, assignment.bystanders)), proc, names)

    def holders() -> tuple[Holder, ...] | None:
        return observer.holders({"device": assignment.files}, (assignment.service,), bystanders.knows)["device"]

    def reset_holders() -> tuple[Holder, ...] | None:
        """All holders that a reset would hit, bystanders and the service included."""
        return observer.holders({"device": assignment.reach})["device"]

    def ours(pid: int) -> bool:
        return observer.descends(pid, (zygote,))

    node = DeviceNode(reset_holders, lambda name: bystanders.runs(name, container_of))
    context = StepContext(devices.open_gpu(assignment.address, node), holders, _progress(answers), ours)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_listen, args=(lines, requests, busy), daemon=True).start()
    while True:
        request = wire.request(requests.get())
        if isinstance(request, wire.Prepare):
            gpu = devices.open_gpu(request.address, replace(node, memory=request.memory))
            context = replace(context, gpu=gpu)
            step_functions.prepare(context)
            continue
        busy.set()
        report = step_functions.perform(request.step, request.order, context)
        busy.clear()
        _send(answers, wire.Answer(report=report))


def _listen(lines: BinaryIO, requests: queue.SimpleQueue[bytes], busy: threading.Event) -> None:
    for line in lines:
        requests.put(line)
    os._exit(_CANCELLED if busy.is_set() else 0)


def _send(answers: BinaryIO, answer: wire.Answer) -> None:
    answers.write(strict_json.encode(answer))
    answers.flush()


def _progress(answers: BinaryIO) -> Callable[[int, int], None]:
    sent = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal sent
        if done < total and time.monotonic() < sent + _BETWEEN_PROGRESS:
            return
        sent = time.monotonic()
        _send(answers, wire.Answer(progress=(done, total)))

    return progress


if __name__ == "__main__":
    main()
