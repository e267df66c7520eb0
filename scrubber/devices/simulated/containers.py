"""Find the containers of processes on a node with simulated GPUs.

A pod of Kubernetes has its own control groups. Elsewhere, for example in the demo, an environment variable names the
simulated container of a process, and another one the node of its GPUs: two nodes on one machine may have containers
of the same name. The first cannot name a pod that has a control group, or had one: the processes of that pod
are in it, and a process outside would keep the GPU of the pod when the pod has ended.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

from scrubber.core.model import is_pod
from scrubber.devices import shortage
from scrubber.node.node_containers import Containers, runs, threads
from scrubber.node.proc import ENDED, BlindError, of_kernel, pids

PROC = Path("/proc")
MARK = "AUTOCLAVE_SIMULATED_CONTAINER"
NODE = "AUTOCLAVE_SIMULATED_NODE"  # without it, the container is one of every node
PODS = Containers(PROC)


def node_of(root: Path) -> str:
    """The node that has its GPUs in this directory. Its path may be another one in a container."""
    directory = root.stat()
    return f"{directory.st_dev}:{directory.st_ino}"


def of(pid: int, pods: Containers = PODS, node: str | None = None) -> str | None:
    """The container of a process; None if it is in none or has ended. BlindError if that cannot be told.

    ``node``: only the containers of this node (``node_of``); None: of all nodes.
    """
    pod = pods.of(pid)
    # The pod in which the service itself runs does not count: the demo may run in a pod.
    if pod is not None and is_pod(pod) and pod != _own_pod(os.getpid()):
        return pod
    marked = _marked(pid, node)
    return None if marked is None or pods.has_group(marked) else marked


def members(pods: Containers = PODS, node: str | None = None) -> Iterator[tuple[int, str]]:
    """All processes in containers, the newest first, each with its container."""
    for pid in sorted(pids(PROC), reverse=True):
        try:
            container = of(pid, pods, node)
        except BlindError as error:
            shortage.demand_none(error)  # a container whose processes cannot be read now would count as ended
            continue
        if container is not None:
            yield pid, container


def living(pods: Containers = PODS, node: str | None = None, wanted: Collection[str] = ()) -> dict[str, int]:
    """The containers that have a live process, as in ``Containers.living``."""
    running: dict[str, int] = {}
    for pid, name in members(pods, node):
        if runs(f"{PROC}/{pid}"):
            running[name] = pid
            if name in wanted and running.keys() >= set(wanted):
                break
    return running


@cache
def _own_pod(pid: int) -> str | None:
    return PODS.of(pid)


def _marked(pid: int, node: str | None) -> str | None:
    process = f"{PROC}/{pid}"
    # A first thread that has ended shows no environment; the other threads still do.
    environment = _environment(process) or next(filter(None, map(_environment, threads(process))), b"")
    if not environment and not of_kernel(process) and runs(process):
        raise BlindError(f"cannot find the container of process {pid}: its environment is empty")
    if MARK.encode() not in environment:
        return None
    values = dict(entry.partition("=")[::2] for entry in environment.decode(errors="replace").split("\0"))
    return values.get(MARK) if node is None or values.get(NODE, node) == node else None


def _environment(task: str) -> bytes:
    try:
        return Path(task, "environ").read_bytes()
    except ENDED:
        return b""
    except OSError as error:
        name = task.rpartition("/")[2]
        raise BlindError(f"cannot find the container of process {name}: {error.strerror}") from error
