"""Which pod or container the path of a control group leads into. Pure.

The name of a pod is its UID, as the kubelet writes it. The name of a container outside any pod is ``container:`` and
the first characters of its id.

A process in a container may create groups below its own, with any name. So only the first matching name from the root
counts, and only at a place where a kubelet or a runtime creates its groups. systemd gives users groups of services and
scopes, never slices: so no pod is below a service or a scope, except that of a runtime.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from scrubber.core.model import CONTAINER, is_pod

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
UNIFIED = "0::"  # where /proc/PID/cgroup begins with it, it tells of version 2 alone
_REMOVED = " (deleted)"
_WHOLE_UID = re.compile(_UID)
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
    names = [found[0] for found in map(outermost, paths(text)) if found is not None]
    return next(filter(is_pod, names), None) or next(iter(names), None)


def outermost(path: str) -> tuple[str, str] | None:
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


def unified(text: str) -> str | None:
    """The group of version 2 in /proc/PID/cgroup."""
    return next((line.removeprefix(UNIFIED) for line in text.split("\n") if line.startswith(UNIFIED)), None)


def is_uid(name: str) -> bool:
    """Whether a name is the UID of a pod, and nothing else."""
    return _WHOLE_UID.fullmatch(name) is not None


def is_container(group: str) -> bool:
    """Whether a group has the name of a container's group."""
    return _CONTAINER.fullmatch(f"/{group}") is not None
