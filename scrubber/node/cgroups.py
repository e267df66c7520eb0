"""Whose a process is, by its control groups of either version under /proc; and which containers still live.

The name of a pod is its UID, as the kubelet writes it. The name of a container outside any pod is ``container:`` and
the first characters of its id. None is a process outside both, which the service may end. So an unknown answer raises
BlindError and is never None.

A process in a container may create groups below its own, with any name. So only the first matching name from the root
counts, and only at a place where a kubelet or a runtime creates its groups. systemd gives users groups of services and
scopes, never slices: so no pod is below a service or a scope, except that of a runtime.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path

from scrubber.core.model import CONTAINER, is_pod
from scrubber.node.proc import DEAD, ENDED, BlindError, pids, sees_all, status

_UID = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"  # 32 digits: a static pod
_END = r"(?=[/:]|$)"
_QOS = r"(?:burstable|besteffort)"
_SLICES = r"(?:/(?:[.][.]|[^/:]*[.]slice))*"
_PLAIN = r"(?:/(?:[.][.]|[^/:]*[.]slice|(?!lxc/)[^/:.]+))*?"  # also the root of a kubelet: /kubelet, /k3s
_RUNTIME = r"/system[.]slice/(?:containerd|k3s(?:-agent)?|rke2-(?:server|agent))[.]service"
_POD = re.compile(
    # The systemd driver, perhaps below another slice: kubepods-burstable-podUID.slice
    rf"^{_SLICES}/(?:[^/:]*-)?kubepods(?:-{_QOS})?-pod{_UID}[.]slice{_END}"
    # The kubelet has the systemd driver, and the runtime has not: it creates the group below its own
    rf"|^{_RUNTIME}/kubepods(?:-{_QOS})?-pod{_UID}[.]slice(?=:)"
    # The cgroupfs driver: kubepods/burstable/podUID
    rf"|^{_PLAIN}/kubepods(?:/{_QOS})?/pod{_UID}{_END}"
    # The same when our own group is in a pod: the path begins with ".." instead of names.
    rf"|^(?:/[.][.])+(?:/{_QOS})?/pod{_UID}{_END}"
)
_CONTAINER = re.compile(r"[/:](?P<runtime>[\w.-]*[-:_])?(?P<id>[0-9a-f]{64})(?:[.]scope)?(?=/|$)")
_MONITOR = "conmon-"  # conmon monitors a container from outside and is not in it
_USERS = "/user.slice/"  # below it each user may create groups, with any name
_UNIFIED = "0::"
_REMOVED = " (deleted)"
GROUPS = Path("/sys/fs/cgroup")
_HIERARCHIES = ("systemd", "pids", "memory", "unified")  # of cgroup v1, each with the same groups
_GONE = frozenset({errno.ENOENT, errno.ENODEV})  # errors of a group that was removed
_MOST_GROUPS = 32  # of a pod that are read: a container may create as many groups as it wants
_WHOLE_UID = re.compile(_UID)
_SYSTEMD_GROUPS = (  # below a hierarchy; {0}: the UID as systemd writes it, {1}: the slice of all pods
    "{1}.slice/{1}-burstable.slice/{1}-burstable-pod{0}.slice",
    "{1}.slice/{1}-besteffort.slice/{1}-besteffort-pod{0}.slice",
    "{1}.slice/{1}-pod{0}.slice",
)
_PLAIN_GROUPS = ("kubepods/burstable/pod{0}", "kubepods/besteffort/pod{0}", "kubepods/pod{0}")  # {0}: the UID
_UNUSUAL_ROOTS = ("*/kubepods", "*.slice/*-kubepods.slice")  # of a kubelet with another ``cgroupRoot``, such as kind's
_OUTSIDE_PODS = ("system.slice/docker-{0}*.scope", "docker/{0}*", "machine.slice/libpod-{0}*.scope")  # {0}: its id
_REMEMBERED = 4096  # pods; a node runs some hundred at a time
_SHOWN = 12  # characters of an id, as container runtimes show it


def paths(text: str) -> Iterator[str]:
    """The groups in /proc/PID/cgroup. No ``splitlines``: names may hold other characters that it splits at."""
    for line in text.split("\n"):
        _hierarchy, _, rest = line.partition(":")
        _controllers, separator, path = rest.partition(":")
        if separator:
            yield path.removesuffix(_REMOVED)


@lru_cache(4096)
def place(text: str) -> str | None:
    """The pod or container that the text of /proc/PID/cgroup names. Cgroup v1 has a line for each hierarchy."""
    names = [name for name in map(_place, paths(text)) if name is not None]
    return next(filter(is_pod, names), None) or next(iter(names), None)


def _place(path: str) -> str | None:
    outermost = _outermost(path)
    return None if outermost is None else outermost[0]


def _outermost(path: str) -> tuple[str, str] | None:
    """The name of the pod or container that a path leads into, and the part of the path that leads to its group."""
    pod = _POD.match(path)
    # A kubelet creates no group below a container or a user's slice.
    if pod is not None and _USERS not in pod[0] and _container(pod[0]) is None:
        return next(uid for uid in pod.groups() if uid is not None).replace("_", "-"), pod[0]
    container = _container(path)
    return None if container is None else (f"{CONTAINER}{container['id'][:_SHOWN]}", path[: container.end()])


def _container(path: str) -> re.Match[str] | None:
    """The outermost container of a path."""
    return next((it for it in _CONTAINER.finditer(path) if not (it["runtime"] or "").endswith(_MONITOR)), None)


class Containers:
    """Finds the containers of this node."""

    def __init__(
        self,
        proc: Path,
        namespace: int | None = None,
        groups: Path = GROUPS,
        made_for: Callable[[str], str | None] = lambda _pod: None,
    ) -> None:
        """``namespace``: the pid namespace that shows the whole node, if it is not the initial one.

        ``groups``: where the node's control groups are mounted. ``made_for``: the path of the group that the container
        runtime was told to use for a pod, if the runtime says that.
        """
        self._proc = proc
        self._namespace = namespace
        self._groups = groups
        self._made_for = made_for
        self.rivals: dict[str, frozenset[Path]] = {}  # by pod: groups with its name that hold somebody and are not its
        self._chosen: dict[str, Path] = {}  # the group of version 2 of each pod or container that was asked for
        # Those that a process was found in, the latest last; with the group that holds all of the pod, if it is known.
        self._pods: dict[str, Path | None] = {}

    def of(self, pid: int) -> str | None:
        """The pod or container of a process; None if it is in neither or has ended. BlindError if it is hidden."""
        process = f"{self._proc}/{pid}"
        try:
            text = _read(process)
            name = _name(process, text)
        except ENDED:
            if os.path.lexists(process):
                raise BlindError(f"cannot find the container of process {pid}: it has no control group") from None
            return None
        except OSError as error:
            raise BlindError(f"cannot find the container of process {pid}: {error.strerror}") from error
        if name is not None and is_pod(name):
            self._pods[name] = self._pods.pop(name, None) or self._whole_group(name, text)
            if len(self._pods) > _REMEMBERED:
                del self._pods[next(iter(self._pods))]
        return name

    def _whole_group(self, pod: str, text: str) -> Path | None:
        """The group that holds all processes of a pod; None where that cannot be said."""
        if text.count("\n") > 1:  # others may be in the pod by a group of version 1 alone
            return None
        try:
            group = _unified_group(self._groups, pod, text)
        except OSError:
            return None
        # A process of the pod runs now. A group without one is another group of the pod, which is not used.
        return group if group is not None and is_populated(group) else None

    def living(self, wanted: Collection[str] = ()) -> dict[str, int]:
        """All pods and containers that have a live process, each with its oldest one; or BlindError.

        ``wanted``: these are enough, if all of them live. The newest processes are read first, so a pod that starts is
        found at once.
        """
        if not sees_all(self._proc, self._namespace):
            raise BlindError("cannot list the running pods: run the service in the host's pid namespace")
        running: dict[str, int] = {}
        for pid in sorted(pids(self._proc), reverse=True):
            try:
                name = self.of(pid)
            except _EndingError:
                continue
            if name is not None and runs(f"{self._proc}/{pid}"):
                running[name] = pid
                if name in wanted and running.keys() >= set(wanted):
                    break
        return running

    def member(self, pod: str) -> int | None:
        """The oldest live process of the pod, found in the pod's control group: the sandbox, which also ends last.

        None proves nothing: the kubelet may create its groups at an unusual place. ``living`` goes through all
        processes.
        """
        members: list[tuple[float, int]] = []
        for group in self._groups_of(pod):
            try:
                listed = [int(pid) for pid in Path(group, "cgroup.procs").read_text().split()]
            except OSError:
                continue  # the group was removed
            for pid in listed:
                process = f"{self._proc}/{pid}"
                try:
                    if self.of(pid) == pod and runs(process):
                        members.append((status(process).started, pid))
                except (BlindError, *ENDED):
                    continue
        return min(members)[1] if members else None

    def has_ended(self, pod: str) -> bool:
        """Whether the kernel says that no process of the pod is left. False proves nothing: ``living`` tells."""
        group, is_mounted = self._pods.get(pod), (self._groups / "cgroup.controllers").exists()
        if group is None or not is_mounted:
            return False
        return not any(map(is_populated, {group, *_usual(self._groups, pod)}))

    def has_group(self, pod: str) -> bool:
        """Whether the pod has a control group at a usual place, or had one in which a process was found."""
        return pod in self._pods or any(True for _ in self._groups_of(pod))

    def unified_groups(self, name: str, root: Path) -> frozenset[int]:
        """The id of the control group of version 2 that holds a pod or container. Empty where that cannot be said.

        Whoever may write to control groups can make one with the name of any pod. So the group of a pod is the one
        that the runtime says it was told to use, or the only one that holds a process or container; once found, it
        stays the pod's. ``rivals`` has the others. ``root``: where the root of that version is mounted.
        """
        group = self._chosen.get(name)
        holding = {other for other in _usual(root, name) if other != group and _holds(other)}
        if group is None:
            made = self._made_for(name)
            holding.update(filter(_holds, _unusual(root, name)))
            candidates = holding if made is None else set(filter(_holds, [root / made.lstrip("/")]))
            if len(candidates) == 1:
                self._chosen[name] = group = candidates.pop()
                if len(self._chosen) > _REMEMBERED:
                    del self._chosen[next(iter(self._chosen))]
        self.rivals.pop(name, None)
        if rivals := frozenset(holding - {group}):
            self.rivals[name] = rivals
        try:
            return frozenset({group.stat().st_ino}) if group is not None else frozenset()
        except FileNotFoundError:
            return frozenset()

    def _groups_of(self, pod: str) -> Iterator[str]:
        """The control group of a pod, and groups below it, such as those of its containers."""
        if not _WHOLE_UID.fullmatch(pod):
            return
        for place in _pod_groups(pod):
            yield from below(self._groups, place)


def below(groups: Path, place: str) -> Iterator[str]:
    """The control groups at a place of each hierarchy, and groups below them. ``groups``: where these are mounted."""
    for hierarchy in ("", *_HIERARCHIES):
        group = os.path.join(groups, hierarchy, place)  # noqa: PTH118 - text
        yield from islice((directory for directory, _, _ in os.walk(group)), _MOST_GROUPS)


def is_populated(group: Path) -> bool:
    """Whether a process is in a control group of version 2 or below it, also if that cannot be told."""
    try:
        return b"populated 0" not in (group / "cgroup.events").read_bytes()
    except OSError as error:
        return error.errno not in _GONE


def unified_group(root: Path, name: str, process: str) -> Path | None:
    """The control group of version 2 of the pod or container with this name, which the process is in.

    None if the process has ended, or is in it by a group of version 1 only. ``root``: where the root of version 2 is
    mounted.
    """
    try:
        text = _read(process)
    except OSError:
        return None
    return _unified_group(root, name, text)


def _unified_group(root: Path, name: str, text: str) -> Path | None:
    path = _unified(text) or ""
    outermost = _outermost(path)
    if outermost is None or outermost[0] != name:
        return None
    if path[len(outermost[1]) :].startswith(":"):  # each container has a group of its own, and the pod's is empty
        return None
    # A path that begins at our own group does not lead from the root.
    places = _usual(root, name) if path.startswith("/..") else [root / outermost[1].lstrip("/")]
    return next(filter(Path.is_dir, places), None)


def _usual(root: Path, name: str) -> list[Path]:
    """Where kubelets make the control group of a pod, and docker and podman that of a container."""
    if _WHOLE_UID.fullmatch(name):
        return [root / place for place in _pod_groups(name)]
    identity = name.removeprefix(CONTAINER)
    places = _OUTSIDE_PODS if re.fullmatch("[0-9a-f]{12}", identity) else ()
    return [group for place in places for group in root.glob(place.format(identity))]


def _unusual(root: Path, pod: str) -> Iterator[Path]:
    """The groups with the name of a pod where the kubelet has another root than that of the node."""
    if not _WHOLE_UID.fullmatch(pod):
        return
    for pattern in _UNUSUAL_ROOTS:
        for above in root.glob(pattern):
            places = _pod_groups(pod, above.name.removesuffix(".slice"))
            yield from filter(Path.is_dir, (above.parent / place for place in places))


def _pod_groups(pod: str, above: str = "kubepods") -> Iterator[str]:
    """Where a kubelet makes the group of a pod, below its root. ``above``: the slice of all pods."""
    yield from (place.format(pod.replace("-", "_"), above) for place in _SYSTEMD_GROUPS)
    yield from (place.format(pod) for place in _PLAIN_GROUPS)


def _holds(group: Path) -> bool:
    """Whether a process is in a group of version 2 or below it, or a runtime has made a container's group there.

    Another driver of the kubelet than of the runtime leaves a group that holds neither.
    """
    if not group.is_dir():
        return False
    if is_populated(group):
        return True
    with suppress(OSError), os.scandir(group) as entries:
        return any(_CONTAINER.fullmatch(f"/{entry.name}") and entry.is_dir() for entry in entries)
    return False


def _unified(text: str) -> str | None:
    """The group of version 2 in /proc/PID/cgroup."""
    return next((line.removeprefix(_UNIFIED) for line in text.split("\n") if line.startswith(_UNIFIED)), None)


def own_group(root: Path, proc: Path = Path("/proc")) -> Path | None:
    """The control group of version 2 that this process is in. None: it cannot be told.

    ``root``: where the root of that version is mounted. In a container, paths begin at the container's own group, which
    is mounted at the usual place.
    """
    inside = _unified(_read(f"{proc}/self"))
    if inside is None:
        return None
    for mount in (root, GROUPS):
        group = mount / inside.lstrip("/")
        with suppress(OSError):
            if str(os.getpid()) in (group / "cgroup.procs").read_text().split():
                return group
    return None


def move_below(group: Path, name: str) -> Path:
    """Move this process into a group of its own of this name. Raises OSError.

    A container that sees its groups read-only has its group for itself already, and stays there.
    """
    own = group / name
    if not (group / "cgroup.procs").exists():
        raise FileNotFoundError(errno.ENOENT, f"{group} is no control group of version 2")
    try:
        own.mkdir(exist_ok=True)
        (own / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return group
    return own


class _EndingError(BlindError):
    """The process is ending and no longer shows its control group."""


def _name(process: str, text: str) -> str | None:
    name = place(text)
    # Cgroup v1 shows an ending task at the root, also a first thread that ended before the other threads.
    if name is not None or text.startswith(_UNIFIED) or not status(process).ending:
        return name
    for thread in threads(process):
        try:
            name = place(_read(thread))
            if name is not None or not status(thread).ending:
                return name
        except ENDED:
            continue
    if status(process).state in DEAD:
        return None
    raise _EndingError(f"cannot find the container of process {process.rpartition('/')[2]}: it is ending")


def runs(process: str) -> bool:
    """Whether the process has a thread that has not ended."""
    for task in (process, *threads(process)):
        try:
            if status(task).state not in DEAD:
                return True
        except ENDED:
            continue
    return False


def threads(process: str) -> list[str]:
    """The threads of a process, without the first."""
    leader = process.rpartition("/")[2]
    try:
        return [f"{process}/task/{task}" for task in os.listdir(f"{process}/task") if task != leader]  # noqa: PTH208 -- text
    except ENDED:
        return []


def _read(task: str) -> str:
    with open(f"{task}/cgroup", errors="replace", newline="\n") as file:  # noqa: PTH123 -- called for every process of the node
        text = file.read()
    if not text:
        raise FileNotFoundError(f"{task}/cgroup")
    return text
