"""What the container runtime says about the pods that it has started: their namespaces, names and control groups.

For each container a runtime keeps a file below /run: the configuration with which the container was started. Only who
may write to the node's /run can change it, and who may do that has the runtime's socket too. A pod cannot choose what
this reads: containerd and CRI-O write these annotations after those of the pod, and the kubelet chooses the path of the
control group, which also names the UID.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from scrubber.core.model import is_pod
from scrubber.node import group_names, group_places

_CONTAINERD = "io.containerd.runtime.v2.task/k8s.io"
_CRI_O = "run/containers/storage/overlay-containers"
DIRECTORIES = (  # with a directory for each container
    f"run/containerd/{_CONTAINERD}",
    f"run/k3s/containerd/{_CONTAINERD}",  # also RKE2
    f"run/k0s/containerd/{_CONTAINERD}",
    _CRI_O,
)
_SLICE = ".slice"


class Sandbox(NamedTuple):
    """A pod, as its runtime was told to start it."""

    uid: str
    name: str  # NAMESPACE/NAME
    group: str  # the path of its control group, below the root


class Sandboxes:
    """Reads the files of the runtime. Each is read once: it does not change."""

    def __init__(self, host_root: Path) -> None:
        """``host_root``: where the node's file system is mounted."""
        self._directories = [f"{host_root}/{directory}" for directory in DIRECTORIES]
        self._groups = host_root / "sys/fs/cgroup"
        self._found: dict[str, Sandbox | None] = {}  # by the directory of a container
        self._pods: dict[str, Sandbox] = {}

    def read(self) -> Mapping[str, Sandbox] | None:
        """Each pod by its UID. None if no runtime says that here: none of these, or its files cannot be read.

        A runtime that has started no pod says nothing either: such a directory may be of podman.
        """
        containers: dict[str, None] = {}
        for directory in self._directories:
            try:
                containers |= {f"{directory}/{name}": None for name in os.listdir(directory)}  # noqa: PTH208 -- as text
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                return None
        if containers.keys() != self._found.keys():
            try:
                found = dict(self._sandboxes(containers))
            except OSError:
                return None
            # In this order: another thread that sees the latter has the former.
            self._pods = {pod.uid: pod for pod in found.values() if pod is not None}
            self._found = found
        return self._pods or None

    def _sandboxes(self, containers: Iterable[str]) -> Iterator[tuple[str, Sandbox | None]]:
        """What the file of each says, without those that are not there yet."""
        for container in containers:
            if container in self._found:
                yield container, self._found[container]
                continue
            directory, _, identity = container.rpartition("/")
            is_cri_o = directory.endswith(_CRI_O)
            document = _document(Path(container, "userdata" if is_cri_o else "", "config.json"))
            if document is not None:
                yield container, _sandbox(document, identity if is_cri_o else None)

    def group(self, pod: str) -> str | None:
        """The path of the control group of a pod; empty if the runtime has no such pod. None if no runtime says it."""
        pods = self.read()
        if pods is None:
            return None
        return pods[pod].group if pod in pods else ""

    def holds(self, pod: str, pid: int) -> bool:
        """Whether a process is in the control group that the runtime was told to use, also if no runtime says it."""
        group = self.group(pod)
        if not group:
            return group is None
        for directory in group_places.below(self._groups, group.lstrip("/")):
            with suppress(OSError):  # the group was removed
                if str(pid) in Path(directory, "cgroup.procs").read_text().split():
                    return True
        return False


def _document(file: Path) -> Any:  # noqa: ANN401 -- as JSON has it
    """None if it is not there yet, not written to its end, or not there any more."""
    try:
        return json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _sandbox(document: Any, of_cri_o: str | None) -> Sandbox | None:  # noqa: ANN401 -- as JSON has it
    """The pod whose sandbox a file is about; None for another container. ``of_cri_o``: its id, if CRI-O wrote it.

    Each runtime takes over what a pod calls an annotation of the other.
    """
    try:
        annotations: dict[str, Any] = document["annotations"]
        path: str = document["linux"]["cgroupsPath"]
        if of_cri_o is not None:
            is_sandbox, prefix = annotations.get("io.kubernetes.cri-o.SandboxID") == of_cri_o, "io.kubernetes.pod."
        else:
            is_sandbox = annotations.get("io.kubernetes.cri.container-type") == "sandbox"
            prefix = "io.kubernetes.cri.sandbox-"
        if not is_sandbox:
            return None
        name = [annotations[f"{prefix}{part}"] for part in ("namespace", "name")]
        group = _group(path)
        uid = group_names.place(f"0::{group}")
        return Sandbox(uid, "/".join(name), group) if uid is not None and is_pod(uid) else None
    except (LookupError, TypeError, AttributeError):
        return None


def _group(path: str) -> str:
    """The group of a pod, by the path of that of a container: SLICE:PREFIX:NAME for systemd, else a path."""
    parent, colon, _ = path.partition(":")
    if not colon:
        return str(Path(path).parent)
    parts = parent.removesuffix(_SLICE).split("-")
    return "/" + "/".join("-".join(parts[: end + 1]) + _SLICE for end in range(len(parts)))
