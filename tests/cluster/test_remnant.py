"""What the next pod sees: `autoclave remnant` as an outsider runs it, with pods of the image for NVIDIA GPUs.

The driver is a stand-in, which clears no memory, and the runtime is one for NVIDIA's. All else is what a node has.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from lightkube.resources.node_v1 import RuntimeClass

from deploy import image
from tests.cluster.autoclave import GPUS
from tests.cluster.conftest import LOGS
from tests.cluster.isolated import STATE
from tests.cluster.nvidia_runtime import install
from tests.cluster.programs import KUBECONFIG
from tests.fakes.cuda.fixtures import libraries

ROOT = Path(__file__).parents[2]
ENDINGS = {"exit", "kill", "delete", "force-delete", "abort"}
ROUNDS = "2"  # of each ending
CLEAN = {ending: {"no remnant"} for ending in ENDINGS}
FAST = yaml.safe_load((ROOT / "policies/fast.yaml").read_text())["defaults"]


class Outsider:
    """Who has kubectl, the image, and no Autoclave on the node."""

    def __init__(self, programs: Path, to: Path) -> None:
        self._programs = programs
        self.to = to

    def run(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """Ask for all GPUs of the node, so that both pods get the same ones."""
        command = [sys.executable, "-m", "autoclave", "remnant", "run", "--on", "kubernetes", "--to", str(self.to)]
        command += ["--image", image.name_of("cuda12"), "--runtime-class", "nvidia", "--count", str(GPUS)]
        found = {"PATH": f"{self._programs}:{os.environ['PATH']}", "HOME": str(STATE), "KUBECONFIG": str(KUBECONFIG)}
        return subprocess.run([*command, *flags], env=os.environ | found, capture_output=True, text=True, check=False)

    async def memory(self, *flags: str) -> dict[str, str]:
        """What was found in the memory of a GPU, by ending."""
        run = await asyncio.to_thread(self.run, "--medium", "memory", "--rounds", ROUNDS, *flags)
        assert (self.to / "result.json").exists(), run.stderr
        result = json.loads((self.to / "result.json").read_text())
        assert not result["ended_early"], result["ended_early"]
        return {cell["ending"]: cell["verdict"] for cell in result["cells"]}


@pytest.fixture(scope="session")
def _image(node, pytestconfig) -> None:
    archive = ROOT / pytestconfig.getoption("--cuda-image")
    if not archive.exists():
        pytest.skip(f"no image in {archive}: make image ARGS='--archive {pytestconfig.getoption('--cuda-image')}'")
    node.load(archive)


@pytest.fixture
async def outsider(pods, _image, pytestconfig, request):
    """The driver and its runtime are on the node."""
    cuda = await asyncio.to_thread(install, libraries())
    for gpu in cuda.machine.gpus:
        cuda.change(gpu.uuid, clears=None)
    handler = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
    await pods.client.create(RuntimeClass.from_dict(handler))
    to = LOGS / "remnant" / request.node.name
    await asyncio.to_thread(to.parent.mkdir, exist_ok=True)
    yield Outsider((ROOT / pytestconfig.getoption("--programs")).resolve(), to)
    await pods.client.delete(RuntimeClass, "nvidia")


def of_each(verdict):
    """What may be found after each ending. By force: the next pod may begin before the first container has ended."""
    return {ending: {verdict} for ending in ENDINGS} | {"force-delete": {verdict, "held"}}


async def finds(outsider, wanted, *flags):
    found = await outsider.memory(*flags)
    assert found.keys() == wanted.keys()
    assert all(found[ending] in wanted[ending] for ending in found), found


async def test_a_plugin_that_does_nothing_leaves_all(outsider, floor):
    await finds(outsider, of_each("remnant"), "--resource", floor)


async def test_nvidias_plugin_leaves_all(outsider, node_with_nvidia, autoclave):
    it = node_with_nvidia
    autoclave.service.end()
    it.vendor = it.nvidia(KUBELET_SOCKET="")
    it.vendor.start()
    await it.offered()
    await finds(outsider, of_each("remnant"))


async def test_behind_autoclave_nvidias_pods_find_nothing(outsider, behind):  # noqa: ARG001 - it runs
    await finds(outsider, CLEAN)


@pytest.mark.parametrize("policy", [{}, FAST], ids=["default", "fast"])
async def test_behind_autoclave_the_next_pod_finds_nothing(outsider, autoclave, policy):
    autoclave.rule(json.dumps(policy))
    await finds(outsider, CLEAN)


async def test_a_policy_that_only_observes_leaves_all(outsider, autoclave):
    autoclave.rule("{mode: observe}")
    await finds(outsider, of_each("remnant"))


async def test_pods_with_claims_find_nothing(outsider, claims):  # noqa: ARG001 - it runs
    await finds(outsider, CLEAN, "--claim-template", f"gpus-{GPUS}")


async def test_what_cannot_be_tested_is_said(outsider):
    for flags, why in {
        ("--resource", "example.com/none", "--rounds", "1"): "a container said nothing for",
        ("--namespace", "none"): 'namespaces "none" not found',
    }.items():
        run = await asyncio.to_thread(outsider.run, *flags)
        assert (run.returncode, why in run.stderr) == (2, True), run.stderr
