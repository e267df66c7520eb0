"""The whole service on NVIDIA GPUs: the real pynvml, real processes and a real tool, over a library of our own.

It runs in a pid namespace, as this machine may hide processes from it that are none of its business.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrubber.cli import asking
from tests.fakes.nvml.build import build, compiler
from tests.fakes.nvml.fixtures import Stage
from tests.fakes.nvml.host import Root
from tests.fakes.nvml.machine import Machine, Slice
from tests.fakes.nvml.nvidia_smi import install
from tests.live import Service

TOOLS = all(map(shutil.which, ("unshare", "nsenter")))
ENTERS = TOOLS and subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], check=False).returncode == 0
pytestmark = pytest.mark.skipif(not ENTERS, reason="no pid namespace may be made here")

HOLD = "import sys; held = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
POLICY = "name: ends-strangers\ndefaults: {evict: {foreign: terminate, grace: 100ms}}\n"


class OnMachine(Service):
    """The service in a pid namespace of its own, with the machine that the library pretends."""

    def __init__(self, root: Path, stage: Stage) -> None:
        self.stage = stage
        (root / "policy.yaml").write_text(POLICY)
        super().__init__(
            root, 1, "--host-root", stage.root.path, "--sight", "namespace", "--policy", root / "policy.yaml"
        )

    def start(self, until="serving"):
        at = self.command.index("simulated")
        self.command[at] = "auto"
        self.command[:0] = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        env = os.environ | self.stage.environment(os.environ["PATH"])
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, env=env)
        assert self.process.stderr is not None
        self.log, self.heard = self.process.stderr, []
        self.hear(until)

    @property
    def inner(self) -> int:
        """The service itself."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())

    def stop(self):
        os.kill(self.inner, signal.SIGTERM)
        self.heard += self.log.readlines()
        assert self.process.wait(20) == 0
        self.log.close()

    def hold(self, number: int) -> subprocess.Popen[str]:
        """A process that has a GPU open, where the service can see it."""
        node = self.stage.root.node(self.stage.machine.gpu(number))
        command = ["nsenter", "--target", str(self.inner), "--pid", sys.executable, "-c", HOLD, str(node)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        return process

    def texts(self, gpu: object) -> list[str]:
        return [entry.text for entry in asking.ask(self.run_dir, lambda admin: admin.history(str(gpu)))]


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[OnMachine]:
    """Three GPUs, the last one cut into slices."""
    if compiler() is None:
        pytest.skip("there is no C compiler here, and the stand-in for NVML is a C library")
    library = build(tmp_path_factory.mktemp("nvml"))
    with tempfile.TemporaryDirectory(prefix="ac-", dir="/tmp") as directory:
        root = Path(directory)
        machine = Machine.h200(root / "machine", 3)
        for number in range(3):
            machine.gpu(number).set(persistence_mode=0)
        machine.gpu(2).cut([Slice("3g.71gb"), Slice("1g.18gb")])
        stage = Stage(machine, library, Root.of(machine, root / "host"), install(root / "bin"))
        running = OnMachine(root, stage)
        yield running
        running.stop()


@pytest.mark.usefixtures("service")
def test_auto_takes_the_gpus_that_the_node_has(autoclave):
    status = json.loads(autoclave("status", "-o", "json").stdout)
    assert [(item["index"], item["slice"], item["model"]) for item in status["items"]] == [
        (0, None, "NVIDIA H200"), (1, None, "NVIDIA H200"),
        (2, 0, "NVIDIA H200 MIG 3g.71gb"), (2, 1, "NVIDIA H200 MIG 1g.18gb"),
    ]  # fmt: skip
    wide = autoclave("status", "2:1", "-o", "wide").stdout.splitlines()
    assert wide[1].startswith("2:1 ")
    assert "nvidia 580.95.05" in wide[1]


def test_what_cannot_be_cleared_is_not_begun_with_and_not_offered(service, autoclave):
    """Nothing is gained by a reset after which the memory cannot be overwritten."""
    devices = json.loads(autoclave("status", "-o", "json").stdout)["items"]
    assert not any(item["healthy"] for item in devices)
    assert "this version cannot clear the memory" in devices[2]["setback"]
    assert service.texts("2:1")[1:] == []  # but that it was found


def test_a_gpu_is_reset_by_the_drivers_tool_while_nobody_has_the_driver_open_us_included(service, autoclave):
    assert autoclave("scrub", "1", "--path", "slow").exit_code == 1
    assert any(text.startswith("reset passed") for text in service.texts(1))
    assert any(call[:2] == (1, "nvmlShutdown") for call in service.stage.machine.calls())  # 1: the service
    assert "no CUDA worker yet" in service.settled(1, "quarantined").quarantine.detail


def try_again(autoclave):
    """Bring the first GPU back by hand, wherever another test has left it."""
    (item,) = json.loads(autoclave("status", "0", "-o", "json").stdout)["items"]
    return autoclave("reinstate" if item["state"] == "quarantined" else "scrub", "0")


def test_a_process_that_holds_a_gpu_is_found_and_ended_where_policy_says_so(service, autoclave):
    with service.hold(0) as holder:
        assert try_again(autoclave).exit_code == 1
        assert holder.wait(20) == -signal.SIGTERM
    assert any("evict passed" in text and "ended" in text for text in service.texts(0))


def test_a_process_that_holds_a_gpu_is_named_and_blocks_where_policy_waits(service, autoclave):
    (service.root / "policy.yaml").write_text("name: waits\n")
    service.hear("policy loaded")
    with service.hold(0) as holder:
        refused = try_again(autoclave)
        assert refused.exit_code == 1
        assert "it is used by python" in refused.stderr
        holder.communicate("")
    (service.root / "policy.yaml").write_text(POLICY)
    service.hear("policy loaded")
