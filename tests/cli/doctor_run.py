"""What tests of ``autoclave doctor`` share: the directory of a kubelet, and one run of the command."""

import json
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from demo.standins import checkpoint
from demo.standins.holdings import DeviceHolding
from tests.live import Service

KUBELET = {"kubelet-dir", "kubelet", "checkpoint", "double-allocation", "plugin", "plugin-dir", "rival-plugin"}
SERVICE = {
    "service",
    "scrubber-socket",
    "ledger",
    "ledger-set-aside",
    "policy",
    "concession",
    "bystanders",
    "device",
    "disk",
}
HERE = {"run-dir", "clock"}
EVERYTHING = KUBELET | SERVICE | HERE | {"create-gate"}
NVIDIA = {
    "driver", "cupy", "scrub-on-free", "coherent-memory", "vgpu-host", "mps", "persistence", "container-toolkit", "cdi",
    "reset", "ecc",
    "pid-namespace", "privileges", "cgroups", "kernel-log",
}  # fmt: skip
SEEN = {"amdgpu", "feature-gates"}  # only where there is such a driver, and with --driver-name
Findings = dict[str, list[dict[str, str]]]


class Kubelet:
    """What a kubelet and a plugin leave in a directory: live sockets and a checkpoint."""

    def __init__(self, directory: Path, alive: ExitStack) -> None:
        self.directory = directory
        self._alive = alive
        (directory / "autoclave").mkdir(parents=True)
        self.kubelet = self.listen("kubelet.sock")
        self.plugin = self.listen("autoclave/nvidia.com_gpu.sock")
        self.hold()

    def listen(self, name):
        found = self._alive.enter_context(socket.socket(socket.AF_UNIX))
        found.bind(str(self.directory / name))
        found.listen()
        return found

    def hold(self, *held):
        """Pods with a device each."""
        entries = [((pod, "main", name), DeviceHolding({-1: (device,)}, b"")) for pod, name, device in held]
        checkpoint.write(self.directory, entries, {"nvidia.com/gpu": []})


@pytest.fixture
def kubelet(short_tmp):
    with ExitStack() as alive:
        yield Kubelet(short_tmp / "kubelet", alive)


@pytest.fixture
def examine(autoclave, tmp_path):
    """The exit code and the findings of one run, by name. The host has no driver unless one is given."""

    def look(kubelet_dir: Path, run_dir: Path, host: Path = tmp_path, only: Sequence[str] = ()) -> tuple[int, Findings]:
        places = ("--kubelet-dir", kubelet_dir, "--run-dir", run_dir, "--host-root", host)
        run = autoclave("doctor", "-o", "json", *places, *(word for name in only for word in ("--only", name)))
        found: Findings = {}
        for it in json.loads(run.stdout)["findings"]:
            found.setdefault(it["name"], []).append(it)
        return run.exit_code, found

    return look


@pytest.fixture
def started(short_tmp):
    """Start services that are stopped in the end."""
    running: list[Service] = []

    def start(*flags: object) -> Service:
        running.append(Service(short_tmp, 1, *flags))
        return running[-1]

    yield start
    for service in running:
        if service.process.poll() is None:
            service.stop()


def levels(found):
    return {name: " ".join(sorted({it["level"] for it in those})) for name, those in found.items()}


def only(found, name, level):
    """The one finding of this name; its level, and a remedy exactly if the level is not ok."""
    [it] = found[name]
    assert (it["level"], bool(it["remedy"])) == (level, level != "ok")
    return it["text"]
