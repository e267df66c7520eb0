"""NVIDIA's own device plugin behind the gate: it registers with ours, and knows nothing of it."""

import asyncio
import sys
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from tests.cluster import files
from tests.cluster.autoclave import DEVICE_PLUGINS, GPUS, Autoclave
from tests.cluster.cluster import container
from tests.cluster.conftest import LOGS
from tests.cluster.nvidia import ROOT, SPECS, install, mounted
from tests.cluster.programs import Program

DIRECTORY = DEVICE_PLUGINS / "vendor"
STRATEGIES = ["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]


class Node:
    """NVIDIA's plugin and ours."""

    def __init__(self, cluster, program, environment) -> None:
        self.cluster = cluster
        self._program = program
        self._environment = environment
        ours: list[str | Path] = [sys.executable, "-m", "autoclave", "plugin", "--vendor-dir", DIRECTORY]
        self.gate = Program("autoclave-in-front", ours, LOGS)
        self.vendor = self.nvidia()

    def nvidia(self, **environment):
        """NVIDIA's plugin; with an empty ``KUBELET_SOCKET``, it registers with the kubelet."""
        sets = {"KUBELET_SOCKET": f"{DIRECTORY}/kubelet.sock", **self._environment, **environment}
        assigned = [f"{key}={value}" for key, value in sets.items() if value]
        flags: list[str | Path] = [
            "--nvidia-driver-root",
            ROOT,
            "--driver-root-ctr-path",
            ROOT,
            "--nvidia-cdi-hook-path",
            "/bin/true",
        ]
        more = ["--gdrcopy-enabled=false", "--gds-enabled=false", "--mofed-enabled=false"]
        return Program("nvidia-plugin", ["env", *assigned, self._program, *flags, *more], LOGS)

    async def hold(self, name, *flags, says="HOLDING"):
        """Create a pod with all GPUs, and return when it has filled them with its secret, or says something else."""
        spec = mounted(self.cluster.spec(), container(*flags, gpus=GPUS))
        await self.cluster.create(name, *spec.pop("containers"), **spec)
        await self.cluster.said(name, says)

    async def start(self):
        """Start ours, and then NVIDIA's: it needs the directory of its socket."""
        before = self.gate.log.read_text().count("waiting for") if self.gate.log.exists() else 0
        self.gate.start()
        await files.until(self.gate.log, lambda: self.gate.log.read_text().count("waiting for") > before)
        self.vendor.start()

    async def offered(self, count=GPUS):
        """Return when the scheduler may place so many GPUs."""
        await self.cluster.offered(count)

    def end(self):
        """End what runs."""
        for program in (self.gate, self.vendor):
            if program.process is not None:
                program.end()


@pytest.fixture
async def node_with_nvidia(pods, autoclave, pytestconfig):
    """NVIDIA's plugin and ours, in place of our own devices; nothing is started."""
    program = (Path(__file__).parents[2] / pytestconfig.getoption("--programs") / "nvidia-device-plugin").resolve()
    if not program.exists():
        pytest.skip(f"{program} not found: see A real node in CONTRIBUTING.md")
    environment = await asyncio.to_thread(_without_our_devices, autoclave)
    it = Node(pods, program, environment)
    await pods.offered(0)
    yield it
    it.end()


def _without_our_devices(autoclave: Autoclave) -> dict[str, str]:
    autoclave.plugin.end()
    autoclave.service.end()
    environment: dict[str, str] = install()
    SPECS.mkdir(exist_ok=True)
    autoclave.service.start()
    return environment


@pytest.fixture
async def behind(node_with_nvidia):
    """Pods get GPUs of NVIDIA's plugin, behind the gate."""
    it = node_with_nvidia
    await it.start()
    await it.offered()
    yield it
    assert it.cluster.faults() == []


async def test_without_autoclave_the_next_pod_finds_the_secret(node_with_nvidia, autoclave):
    """What the other tests rely on."""
    it = node_with_nvidia
    autoclave.service.end()
    it.vendor = it.nvidia(KUBELET_SOCKET="")
    it.vendor.start()
    await it.offered()
    await it.hold("first")
    await it.cluster.delete("first")
    await it.cluster.gone("first")
    await it.hold("second", says="DIRTY")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ids", ["uuid", "index"])
async def test_the_next_pod_finds_no_byte_by_any_strategy(behind, strategy, ids):
    behind.vendor.end()
    behind.vendor = behind.nvidia(DEVICE_LIST_STRATEGY=strategy, DEVICE_ID_STRATEGY=ids)
    behind.vendor.start()
    await files.until(behind.gate.log, lambda: behind.gate.log.read_text().count("has registered") > 1)
    await behind.hold("first")
    await behind.cluster.delete("first")
    await behind.hold("second")
    assert behind.cluster.words("second").count("CLEAN") == GPUS


async def test_a_pod_waits_for_a_force_deleted_one(behind, autoclave):
    autoclave.rule("{gate: prestart}")
    await behind.hold("first", "-stubborn")
    await behind.cluster.delete("first", grace=0)
    await behind.hold("second")


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("part", ["vendor", "gate", "kubelet"])
async def test_a_pod_keeps_its_gpus_over_a_restart(behind, node, part, number):
    await behind.hold("first")
    program = node.kubelet if part == "kubelet" else getattr(behind, part)
    program.end(number)
    program.start()
    await behind.cluster.said("first", "INTACT", more=4)
    await behind.cluster.delete("first")
    await behind.hold("second")
    assert behind.cluster.words("second").count("CLEAN") == GPUS


async def test_a_restart_of_nvidias_plugin_ends_no_quarantine(behind, autoclave):
    [device, *_] = await autoclave.devices(lambda _: True)
    await autoclave.quarantine(device.device)
    await behind.offered(GPUS - 1)
    behind.vendor.end(SIGKILL)
    behind.vendor.start()
    await files.until(behind.gate.log, lambda: behind.gate.log.read_text().count("has registered") > 1)
    await behind.offered(GPUS - 1)
    await autoclave.reinstate(device.device)
    await behind.offered()
    await behind.hold("pod")


async def test_the_gate_comes_and_goes_while_a_pod_runs(node_with_nvidia):
    it = node_with_nvidia
    it.vendor = it.nvidia(KUBELET_SOCKET="")
    it.vendor.start()
    await it.offered()
    await it.hold("first")
    it.vendor.end()
    it.vendor = it.nvidia()
    await it.start()
    await it.offered()
    await it.cluster.said("first", "INTACT", more=4)
    await it.cluster.delete("first")
    await it.hold("second")
    assert it.cluster.words("second").count("CLEAN") == GPUS
    it.end()
    it.vendor = it.nvidia(KUBELET_SOCKET="")
    it.vendor.start()
    await it.cluster.said("second", "INTACT", more=4)
    await it.offered()
    assert it.cluster.faults() == []
