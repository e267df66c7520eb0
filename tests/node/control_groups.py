"""Control groups as kubelets and runtimes name them, made below the root of each hierarchy that can be written to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.pod_groups import roots

UID = f"{os.getpid():08x}-11aa-4b3c-9d3e-5f6a7b8c9d0e"  # unique to this run
ID, INNER = "a1" * 32, "b2" * 32
OURS = f"autoclave-layouts-{os.getpid()}.slice"  # all groups are below it: others test here at the same time
POD = {  # the kubelet's driver and the pod's class of service to the group of the pod; systemd wants it with "_"
    "systemd, burstable": "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_}.slice",
    "systemd, guaranteed": "kubepods.slice/kubepods-pod{_}.slice",
    "systemd, in kind": "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{_}.slice",
    "cgroupfs, besteffort": "kubepods/besteffort/pod{0}",
    "cgroupfs, guaranteed": "kubepods/pod{0}",
}
CONTAINER = {  # the runtime to the group of a container below that
    "containerd, systemd": f"cri-containerd-{ID}.scope",
    "containerd, cgroupfs": ID,
    "CRI-O, systemd": f"crio-{ID}.scope/container",
    "CRI-O, cgroupfs": f"crio-{ID}",
    "docker, systemd": f"docker-{ID}.scope",
    "docker in a container": f"cri-containerd-{ID}.scope/docker/{INNER}",
}

Group = Callable[[str], Path]


def pod(driver: str, uid: str = UID) -> str:
    """The group of a pod."""
    return POD[driver].format(uid, _=uid.replace("-", "_"))


@pytest.fixture(params=["second", "first"])
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    """Makes a group, with those above it, in a hierarchy of one version; what was made is removed with the test."""
    root = roots().get(request.param)
    if root is None:
        pytest.skip(f"no control groups of the {request.param} version here")
    made: list[Path] = []

    def make(name: str) -> Path:
        at = root
        for part in (OURS, *name.split("/")):
            at /= part
            try:
                at.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                pytest.skip(f"takes root, to make a control group: {error.strerror}")
            made.append(at)
        return at

    yield make
    for directory in reversed(made):
        with suppress(FileNotFoundError):  # the test has removed it
            directory.rmdir()


class Process:
    """A child process of the test that sleeps in a control group."""

    def __init__(self, group: Path) -> None:
        self._sleeper = subprocess.Popen(["sleep", "60"])
        self.pid = self._sleeper.pid
        try:
            (group / "cgroup.procs").write_text(str(self.pid))
        except OSError:
            self.collect()
            raise

    def end(self) -> None:
        """Kill the process, and leave it as a zombie."""
        self._sleeper.kill()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def collect(self) -> None:
        """Kill the process, and wait for its end."""
        self._sleeper.kill()
        self._sleeper.wait()


@pytest.fixture
def enter() -> Iterator[Callable[[Path], Process]]:
    """Starts a process in a group; it is gone before the group is to be removed."""
    started: list[Process] = []

    def run(group: Path) -> Process:
        started.append(Process(group))
        return started[-1]

    yield run
    for process in started:
        process.collect()
