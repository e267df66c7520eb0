"""Where kubelets and container runtimes make the control groups of pods and containers.

``groups``: where the node's control groups of either version are mounted; ``root``: where the root of version 2 is.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from scrubber.core.model import CONTAINER
from scrubber.node import group_names
from scrubber.node.proc import cgroup_text, status

GROUPS = Path("/sys/fs/cgroup")
_HIERARCHIES = ("systemd", "pids", "memory", "unified")  # of cgroup v1, each with the same groups
_GONE = frozenset({errno.ENOENT, errno.ENODEV})  # errors of a group that was removed
_ABOVE = re.compile(r"^(?:/[.][.])+")  # of a path that begins at our own group
_MOST_GROUPS = 32  # of a pod that are read: a container may create as many groups as it wants
_SYSTEMD_GROUPS = (  # below a hierarchy; {0}: the UID as systemd writes it, {1}: the slice of all pods
    "{1}.slice/{1}-burstable.slice/{1}-burstable-pod{0}.slice",
    "{1}.slice/{1}-besteffort.slice/{1}-besteffort-pod{0}.slice",
    "{1}.slice/{1}-pod{0}.slice",
)
_PLAIN_GROUPS = ("kubepods/burstable/pod{0}", "kubepods/besteffort/pod{0}", "kubepods/pod{0}")  # {0}: the UID
_UNUSUAL_ROOTS = ("*/kubepods", "*.slice/*-kubepods.slice")  # of a kubelet with another ``cgroupRoot``, such as kind's
_OUTSIDE_PODS = ("system.slice/docker-{0}*.scope", "docker/{0}*", "machine.slice/libpod-{0}*.scope")  # {0}: its id


def below(groups: Path, place: str) -> Iterator[str]:
    """The control groups at a place of each hierarchy, and groups below them."""
    for hierarchy in ("", *_HIERARCHIES):
        group = os.path.join(groups, hierarchy, place)  # noqa: PTH118 - text
        yield from islice((directory for directory, _, _ in os.walk(group)), _MOST_GROUPS)


def is_populated(group: Path) -> bool:
    """Whether a process is in a control group of version 2 or below it, also if that cannot be told."""
    try:
        return b"populated 0" not in (group / "cgroup.events").read_bytes()
    except OSError as error:
        return error.errno not in _GONE


def of_process(root: Path, pid: int, started: float) -> int | None:
    """The kernel's number of the control group of version 2 that a process is in. None: it has ended, or is not seen.

    A path proves nothing where it begins at our own group: so the group must list the process.
    """
    process = f"/proc/{pid}"
    try:
        inside = group_names.unified(cgroup_text(process)) or ""
        group = root / _ABOVE.sub("", inside).lstrip("/")
        listed = str(pid) in (group / "cgroup.procs").read_text().split()
        return group.stat().st_ino if listed and status(process).started == started else None
    except (OSError, ValueError):  # ValueError: a name with a NUL, or a process that is being removed
        return None


def unified_group(root: Path, name: str, process: str) -> Path | None:
    """The control group of version 2 of the pod or container with this name, which the process is in.

    None if the process has ended, or is in it by a group of version 1 only.
    """
    try:
        text = cgroup_text(process)
    except OSError:
        return None
    return unified_group_in(root, name, text)


def unified_group_in(root: Path, name: str, text: str) -> Path | None:
    """``unified_group``, for what /proc/PID/cgroup says of the process."""
    path = group_names.unified(text) or ""
    outermost = group_names.outermost(path)
    if outermost is None or outermost[0] != name:
        return None
    if path[len(outermost[1]) :].startswith(":"):  # each container has a group of its own, and the pod's is empty
        return None
    # A path that begins at our own group does not lead from the root.
    places = usual(root, name) if path.startswith("/..") else [root / outermost[1].lstrip("/")]
    return next(filter(Path.is_dir, places), None)


def usual(root: Path, name: str) -> list[Path]:
    """Where kubelets make the control group of a pod, and docker and podman that of a container."""
    if group_names.is_uid(name):
        return [root / place for place in pod_groups(name)]
    identity = name.removeprefix(CONTAINER)
    places = _OUTSIDE_PODS if re.fullmatch("[0-9a-f]{12}", identity) else ()
    return [group for place in places for group in root.glob(place.format(identity))]


def unusual(root: Path, pod: str) -> Iterator[Path]:
    """The groups with the name of a pod where the kubelet has another root than that of the node."""
    if not group_names.is_uid(pod):
        return
    for pattern in _UNUSUAL_ROOTS:
        for above in root.glob(pattern):
            places = pod_groups(pod, above.name.removesuffix(".slice"))
            yield from filter(Path.is_dir, (above.parent / place for place in places))


def pod_groups(pod: str, above: str = "kubepods") -> Iterator[str]:
    """Where a kubelet makes the group of a pod, below its root. ``above``: the slice of all pods."""
    yield from (place.format(pod.replace("-", "_"), above) for place in _SYSTEMD_GROUPS)
    yield from (place.format(pod) for place in _PLAIN_GROUPS)
