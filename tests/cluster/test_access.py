"""Who can open a GPU that it was not given: `autoclave access` as an outsider runs it, on the GPUs of this node.

The containers are of the image for NVIDIA GPUs, because it has Python. What was found is kept in build/cluster/access.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import image
from tests.cluster import programs
from tests.cluster.autoclave import GPUS, SIMULATED
from tests.cluster.conftest import LOGS
from tests.cluster.isolated import STATE
from tests.cluster.programs import KUBECONFIG

ROOT = Path(__file__).parents[2]
NODES = f"{SIMULATED}/gpu*/memory"
WITHOUT_A_GPU = {
    "no-request",
    "variable",
    "cdi-annotation",
    "second-container",
    "ephemeral-container",
    "init-container",
}
WITH_RIGHTS = {"privileged", "privileged-own-node", "own-node", "host-dev", "host-pid"}


@pytest.fixture(scope="session")
def _image(node, pytestconfig) -> None:
    archive = ROOT / pytestconfig.getoption("--cuda-image")
    if not archive.exists():
        pytest.skip(f"no image in {archive}: make image ARGS='--archive {pytestconfig.getoption('--cuda-image')}'")
    node.load(archive)


@pytest.fixture
def table(_image, pytestconfig):
    """Runs the command, asks for all GPUs, and returns the verdicts; the whole report stays in the logs."""
    folder = (ROOT / pytestconfig.getoption("--programs")).resolve()

    async def of(arm: str, *flags: str) -> dict[str, str]:
        to = LOGS / "access" / arm
        to.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "autoclave", "access", "run", "--node", programs.NODE, "--to", str(to)]
        command += ["--image", image.name_of("cuda12"), "--nodes", NODES, "--count", str(GPUS), *flags]
        found = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(STATE), "KUBECONFIG": str(KUBECONFIG)}
        run = await asyncio.to_thread(
            subprocess.run, command, env=os.environ | found, capture_output=True, text=True, check=False
        )
        result = json.loads((to / "result.json").read_text())
        assert (result["ended_early"], result["left_behind"]) == ("", ""), run.stderr
        assert result["owner"]["opened"], run.stderr
        return {way["way"]: way["verdict"] for way in result["ways"]}

    return of


async def test_with_a_do_nothing_plugin_a_right_opens_a_gpu(table, floor):
    found = await table("a do-nothing plugin", "--resource", floor)
    assert {found[name] for name in WITHOUT_A_GPU} == {"pass"}
    assert found["privileged"] == found["privileged-own-node"] == "fail"


async def test_with_autoclave_no_pod_opens_a_gpu_of_another(table, pods, refusing):  # noqa: ARG001 - they run
    found = await table("Autoclave, policy default")
    assert {name: found[name] for name in WITHOUT_A_GPU | WITH_RIGHTS if found[name] != "pass"} == {}
    assert found["kept-open"] == found["leftover"] == "pass"
