"""What the next pod sees: `autoclave remnant` as an outsider runs it, with pods of the image for NVIDIA GPUs.

The driver is a stand-in, which clears no memory, and the runtime is one for NVIDIA's. All else is what a node has.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from signal import SIGINT

import pytest
import yaml
from lightkube.resources.core_v1 import Namespace, ServiceAccount
from lightkube.resources.node_v1 import RuntimeClass

from deploy import image
from tests.cluster.autoclave import GPUS
from tests.cluster.conftest import LOGS
from tests.cluster.isolated import STATE
from tests.cluster.nvidia_runtime import install
from tests.cluster.programs import KUBECONFIG
from tests.fakes.cuda.fixtures import libraries
from tests.fakes.cuda.machine import CudaMachine

ROOT = Path(__file__).parents[2]
ENDINGS = {"exit", "kill", "delete", "force-delete", "abort"}
CLEAN = {ending: {"no remnant"} for ending in ENDINGS}
FAST = yaml.safe_load((ROOT / "policies/fast.yaml").read_text())["defaults"]


class Outsider:
    """Who has kubectl, the image, and no Autoclave on the node."""

    def __init__(self, programs: Path, rounds: int, cuda: CudaMachine) -> None:
        """``rounds``: of each ending. ``cuda``: what the driver of the node does."""
        self.cuda = cuda
        self._programs = programs
        self._rounds = rounds
        self.to = LOGS / "remnant" / "nothing"

    def started(self, *flags: str) -> subprocess.Popen[str]:
        """Ask for all GPUs of the node, so that both pods get the same ones."""
        command = [sys.executable, "-m", "autoclave", "remnant", "run", "--on", "kubernetes", "--to", str(self.to)]
        command += ["--image", image.name_of("cuda12"), "--runtime-class", "nvidia", "--count", str(GPUS), *flags]
        found = {"PATH": f"{self._programs}:{os.environ['PATH']}", "HOME": str(STATE), "KUBECONFIG": str(KUBECONFIG)}
        return subprocess.Popen(
            command, env=os.environ | found, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """The same, until it ends."""
        with self.started(*flags) as run:
            out, said = run.communicate()
        return subprocess.CompletedProcess(run.args, run.returncode, out, said)

    async def finds(self, arm: str, wanted: dict[str, set[str]], *flags: str) -> None:
        """In the memory of a GPU, after each ending, one of what is wanted."""
        self.to = LOGS / "remnant" / arm
        run = await asyncio.to_thread(self.run, "--medium", "memory", "--rounds", str(self._rounds), *flags)
        assert (self.to / "result.json").exists(), run.stderr
        result = json.loads((self.to / "result.json").read_text())
        assert not result["ended_early"], result["ended_early"]
        found = {cell["ending"]: cell["verdict"] for cell in result["cells"]}
        assert found.keys() == wanted.keys()
        assert all(found[ending] in wanted[ending] for ending in found), found


@pytest.fixture(scope="session")
def _image(node, pytestconfig) -> None:
    archive = ROOT / pytestconfig.getoption("--cuda-image")
    if not archive.exists():
        pytest.skip(f"no image in {archive}: make image ARGS='--archive {pytestconfig.getoption('--cuda-image')}'")
    node.load(archive)


@pytest.fixture
async def outsider(pods, _image, pytestconfig):
    """The driver and its runtime are on the node."""
    cuda = await asyncio.to_thread(install, libraries())
    handler = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
    await pods.client.create(RuntimeClass.from_dict(handler))
    await asyncio.to_thread((LOGS / "remnant").mkdir, exist_ok=True)
    rounds = pytestconfig.getoption("--remnant-rounds")
    yield Outsider((ROOT / pytestconfig.getoption("--programs")).resolve(), rounds, cuda)
    await pods.client.delete(RuntimeClass, "nvidia")


def of_each(verdict):
    """What may be found after each ending. By force: the next pod may begin before the first container has ended."""
    return {ending: {verdict} for ending in ENDINGS} | {"force-delete": {verdict, "held"}}


@pytest.fixture
async def restricted(pods):
    """A namespace that refuses pods with more rights than they need."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await pods.client.create(Namespace.from_dict({"metadata": {"name": "restricted", "labels": labels}}))
    await pods.until(ServiceAccount, "default", lambda account: account is not None, namespace="restricted")
    yield "restricted"
    await pods.client.delete(Namespace, "restricted")


async def test_a_plugin_that_does_nothing_leaves_all(outsider, floor, restricted):
    flags = ("--resource", floor, "--namespace", restricted)
    await outsider.finds("a plugin that does nothing", of_each("remnant"), *flags)


async def test_a_driver_that_clears_leaves_nothing(outsider, alone):  # noqa: ARG001 - it runs
    for gpu in outsider.cuda.machine.gpus:
        outsider.cuda.change(gpu.uuid, clears={0: outsider.cuda.memory(gpu.uuid).stat().st_size})
    await outsider.finds("NVIDIA's plugin, and a driver that clears", of_each("no remnant"))


async def test_nvidias_plugin_leaves_all(outsider, alone):  # noqa: ARG001 - it runs
    await outsider.finds("NVIDIA's plugin", of_each("remnant"))


async def test_behind_autoclave_nvidias_pods_find_nothing(outsider, behind):  # noqa: ARG001 - it runs
    await outsider.finds("NVIDIA's plugin behind Autoclave", CLEAN)


@pytest.mark.parametrize("policy", ["default", "fast"])
async def test_behind_autoclave_the_next_pod_finds_nothing(outsider, autoclave, policy):
    autoclave.rule(**(FAST if policy == "fast" else {}))
    await outsider.finds(f"Autoclave, policy {policy}", CLEAN)


async def test_pods_with_claims_find_nothing(outsider, claims):  # noqa: ARG001 - it runs
    await outsider.finds("Autoclave, claims", CLEAN, "--claim-template", f"gpus-{GPUS}")


async def test_a_policy_that_only_observes_leaves_all(outsider, autoclave):
    autoclave.rule(mode="observe")
    await outsider.finds("Autoclave, policy observe", of_each("remnant"))


async def test_a_pod_that_cannot_start_says_why(outsider, pods):
    """And Ctrl-C leaves nothing."""
    with outsider.started("--resource", "example.com/none") as run:
        waits = await asyncio.to_thread(next, (line for line in run.stderr if "waits" in line))
        assert "Insufficient example.com/none" in waits
        run.send_signal(SIGINT)
        _, said = await asyncio.to_thread(run.communicate)
    assert (run.returncode, "there is no result" in said) == (130, True), said
    assert not outsider.to.exists()
    assert await pods.names() == []


async def test_a_namespace_that_is_not_there_is_said(outsider):
    run = await asyncio.to_thread(outsider.run, "--namespace", "none")
    assert (run.returncode, 'namespaces "none" not found' in run.stderr) == (2, True), run.stderr
    assert not outsider.to.exists()
