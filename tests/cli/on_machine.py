"""A machine with NVIDIA GPUs for the whole service: its stand-ins, its policy, and the service's processes on it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from autoclave.cli import service_call
from scrub_api import views
from tests.fakes.nvml import build
from tests.fakes.nvml.fixtures import Stage
from tests.fakes.nvml.host import Root
from tests.fakes.nvml.machine import Machine
from tests.fakes.nvml.nvidia_smi import install
from tests.live import Service

TOOLS = all(map(shutil.which, ("unshare", "nsenter")))
ENTERS = TOOLS and subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], check=False).returncode == 0
needs_namespace = pytest.mark.skipif(not ENTERS, reason="takes root, to make a pid namespace")

POLICY = """\
name: ends-strangers
defaults:
  evict: {foreign: terminate, grace: 100ms}
  clear: {min_coverage: 0.7}
  selftest: {time: 1s}
  quarantine: {probation: {first: 1h}}
"""
HOLD = "import sys; held = open(sys.argv[1]); print(flush=True); sys.stdin.read()"


@pytest.fixture(scope="module")
def library() -> Path:
    """The stand-in for NVML."""
    if build.compiler() is None:
        pytest.skip("there is no C compiler here, and the stand-in for NVML is a C library")
    return build.library()


def staged(root: Path, library: Path, count: int) -> Stage:
    """So many GPUs that nothing keeps ready."""
    machine = Machine.h200(root / "machine", count)
    for number in range(count):
        machine.gpu(number).set(persistence_mode=0)
    return Stage(machine, library, Root.of(machine, root / "host"), install(root / "bin"))


def shown(pid: int, name: str) -> str:
    """What the kernel shows of a process; nothing of one that is gone, which it may be any moment."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children(pid: int) -> list[int]:
    """Those of a process that still run."""
    states = {int(it): shown(int(it), "status") for it in shown(pid, f"task/{pid}/children").split()}
    return [child for child, state in states.items() if state and "\nState:\tZ" not in state]


def without_cupy(folder: Path) -> dict[str, str]:
    """For a process that finds no CuPy, although it is installed."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys; sys.modules['cupy_backends'] = None")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}


class OnMachine(Service):
    """The service in a pid namespace of its own, with the machine that the libraries pretend."""

    def __init__(self, root: Path, stage: Stage, policy: str, more: Mapping[str, str] | None = None) -> None:
        """``more``: what its environment holds beside what the stage wants."""
        self.stage = stage
        self.more = more or {}
        # The stand-ins have numbers of device nodes, and the fence would stand in the kernel of this machine.
        off = "defaults:\n  fence: {mode: off}\n"
        shut = policy.replace("defaults:\n", off, 1) if "defaults:\n" in policy else policy + off
        (root / "policy.yaml").write_text(shut)
        host = ("--host-root", stage.root.path, "--pod-logs-dir", "/var/log/pods", "--sight", "namespace")
        super().__init__(root, 1, *host, "--policy", root / "policy.yaml")

    def start(self, until="serving"):
        self.command = [it for it in self.command if it not in ("unshare", *FLAGS)]
        self.command[self.command.index("--backend") + 1] = "auto"
        self.command[:0] = ["unshare", *FLAGS]
        env = os.environ | self.stage.environment(os.environ["PATH"]) | {**self.more}
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, env=env)
        self.log_lines = []
        self.follow()
        self.hear(until)

    @property
    def inner(self) -> int:
        """The service itself."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())

    def stop(self):
        os.kill(self.inner, signal.SIGTERM)
        self.end()

    def hold(self, number: int) -> subprocess.Popen[str]:
        """A process that has a GPU open, where the service can see it."""
        node = self.stage.root.node(self.stage.machine.gpu(number))
        command = ["nsenter", "--target", str(self.inner), "--pid", sys.executable, "-c", HOLD, str(node)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        return process

    def entries(self, gpu: object) -> tuple[views.HistoryEntry, ...]:
        return service_call.ask(self.run_dir, lambda admin: admin.history(str(gpu)))

    def texts(self, gpu: object) -> list[str]:
        return [entry.text for entry in self.entries(gpu)]


FLAGS = ("--pid", "--fork", "--mount-proc", "--kill-child")
