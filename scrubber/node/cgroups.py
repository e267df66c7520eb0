"""Which pod or container a process belongs to, by the control groups that it is in.

A process of a pod is named by the pod's UID, as the kubelet writes it down; one of a container that is in no pod by
``container:`` and the beginning of its id; and None is a process that is in neither, and may be ended for it. So
whatever keeps us from telling is a BlindError, never None.

Who is in a container may make groups below its own, under any name. So the first name on a path is believed, from the
root downwards, and only where a kubelet or a runtime would have put it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scrubber.core import names
from scrubber.node.proc import DEAD, ENDED, BlindError, pids, sees_all, status

_UID = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"  # 32: a static pod's, a digest
_END = r"(?=[/:]|$)"
_QOS = r"(?:burstable|besteffort)"
_POD = re.compile(
    # As systemd has it, perhaps below another slice: kubepods-burstable-podUID.slice
    rf"/(?:[^/:]*-)?kubepods(?:-{_QOS})?-pod{_UID}[.]slice{_END}"
    # As the kubelet makes it by itself: kubepods/burstable/podUID
    rf"|/kubepods(?:/{_QOS})?/pod{_UID}{_END}"
    # The same, seen from within a group of ours that is in a pod: the way up shows no names.
    rf"|^(?:/[.][.])+(?:/{_QOS})?/pod{_UID}{_END}"
)
_CONTAINER = re.compile(r"[/:](?P<runtime>[\w.-]*[-:_])?(?P<id>[0-9a-f]{64})(?:[.]scope)?(?=/|$)")
_MONITOR = "conmon-"  # what a runtime leaves beside a container to watch it is not in the container
_USERS = "/user.slice/"  # below it every user may make groups, under any name
_UNIFIED = "0::"
_REMOVED = " (deleted)"
_SHOWN = 12  # of an id, as its runtime shows it


@dataclass(frozen=True, slots=True)
class CgroupPlace:
    """Where a process is."""

    pod: str | None = None
    container: str | None = None

    @property
    def name(self) -> str | None:
        """How it is called where holders and owners are spoken of."""
        if self.pod is not None:
            return self.pod
        return None if self.container is None else f"{names.CONTAINER}{self.container[:_SHOWN]}"


def paths(text: str) -> Iterator[str]:
    """The groups that /proc/PID/cgroup names. Not by ``splitlines``: names may hold whatever else ends a line."""
    for line in text.split("\n"):
        _hierarchy, _, rest = line.partition(":")
        _controllers, found, path = rest.partition(":")
        if found:
            yield path.removesuffix(_REMOVED)


@lru_cache(4096)
def place(text: str) -> CgroupPlace:
    """Where a process is whose /proc/PID/cgroup says this. On cgroup v1 there is a line for every hierarchy."""
    found = [_place(path) for path in paths(text)]
    in_pods = [it for it in found if it.pod is not None]
    in_containers = [it for it in in_pods or found if it.container is not None]
    return next(iter((*in_containers, *in_pods)), CgroupPlace())


def _place(path: str) -> CgroupPlace:
    outermost = _containers(path)[:1]
    pod = _POD.search(path)
    if pod is None or not _kubelets(path[: pod.start()]):
        return CgroupPlace(container=next(iter(outermost), None))
    uid = next(uid for uid in pod.groups() if uid is not None)
    innermost = _containers(path[pod.end() :])[-1:]  # an engine in a container has containers of its own
    return CgroupPlace(uid.replace("_", "-"), next(iter(innermost), None))


def _kubelets(above: str) -> bool:
    """Whether what stands below this may be a kubelet's: groups of a container or of a user are anybody's."""
    return _USERS not in f"{above}/" and not _containers(above)


def _containers(path: str) -> list[str]:
    return [it["id"] for it in _CONTAINER.finditer(path) if not (it["runtime"] or "").endswith(_MONITOR)]


class Containers:
    """Sight of the containers of this node."""

    def __init__(self, proc: Path, namespace: int | None = None) -> None:
        """Nothing is looked at yet. ``namespace``: the one that shows the whole node, if not the machine's first."""
        self._proc = proc
        self._namespace = namespace

    def of(self, pid: int) -> str | None:
        """The pod or container of a process; None when it is in neither, or gone. BlindError when that is hidden."""
        process = f"{self._proc}/{pid}"
        try:
            return _name(process)
        except ENDED:
            if os.path.lexists(process):
                raise BlindError(f"cannot tell whose process {pid} is: it names no control group") from None
            return None
        except OSError as error:
            raise BlindError(f"cannot tell whose process {pid} is: {error.strerror}") from error

    def living(self) -> dict[str, int]:
        """All pods and containers of which a process runs, with the first of each. BlindError, if not to tell."""
        return dict(self._walk())

    def _walk(self) -> Iterator[tuple[str, int]]:
        """Each name once."""
        if not sees_all(self._proc, self._namespace):
            raise BlindError("cannot tell which pods run: run the service in the host's pid namespace")
        met: set[str] = set()
        for pid in pids(self._proc):
            try:
                name = self.of(pid)
            except _EndingError:
                continue
            if name is not None and name not in met and _runs(f"{self._proc}/{pid}"):
                met.add(name)
                yield name, pid


class _EndingError(BlindError):
    """The process is on its way out, and no longer says where it was."""


def _name(process: str) -> str | None:
    text = _read(process)
    name = place(text).name
    # On cgroup v1 whoever is ending is shown at the root, also a first thread that ended before the others.
    if name is not None or text.startswith(_UNIFIED) or not status(process).ending:
        return name
    for thread in _threads(process):
        try:
            name = place(_read(thread)).name
            if name is not None or not status(thread).ending:
                return name
        except ENDED:
            continue
    if status(process).state in DEAD:
        return None
    raise _EndingError(f"cannot tell whose process {process.rpartition('/')[2]} is: it is ending")


def _runs(process: str) -> bool:
    """Whether it has a thread that has not ended."""
    for task in (process, *_threads(process)):
        try:
            if status(task).state not in DEAD:
                return True
        except ENDED:
            continue
    return False


def _threads(process: str) -> list[str]:
    """Its threads but the first."""
    leader = process.rpartition("/")[2]
    try:
        return [f"{process}/task/{task}" for task in os.listdir(f"{process}/task") if task != leader]  # noqa: PTH208 -- text
    except ENDED:
        return []


def _read(task: str) -> str:
    with open(f"{task}/cgroup", errors="replace", newline="\n") as file:  # noqa: PTH123 -- once for every process of the node
        text = file.read()
    if not text:
        raise FileNotFoundError(f"{task}/cgroup")
    return text
