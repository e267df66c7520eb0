"""Pods that wait for their GPU on the real node, while the service is away and while a GPU is quarantined."""

import asyncio
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import yaml
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Node, Pod

from deploy import generate
from scrubber.devices.simulated import drills
from tests.cluster import files
from tests.cluster.autoclave import GPUS, SIMULATED
from tests.cluster.cluster import container
from tests.cluster.conftest import LOGS
from tests.cluster.isolated import STATE
from tests.cluster.programs import KUBECONFIG
from tests.patience import WITHIN

KILLS = 10


@pytest.mark.long
async def test_ten_kills_of_the_service_fail_no_pod(cluster, autoclave):
    """Pods come while the service is away, and begin when it is back."""
    await autoclave.clean()
    before = waiting(autoclave)
    for kill in range(KILLS):
        autoclave.service.end(SIGKILL)
        names = [f"pod-{kill}-{number}" for number in range(GPUS)]
        await asyncio.gather(*(cluster.create(name, container("-for", "50ms")) for name in names))
        await until_waiting(autoclave, before + GPUS * (kill + 1))
        await autoclave.up()
        await asyncio.gather(*map(cluster.ended, names))
    assert await cluster.refused() == []


@pytest.fixture
async def evict(bare, pytestconfig):
    """Runs the descheduler once, with the example's policy. Nothing has to wait for long."""
    program = (generate.ROOT / pytestconfig.getoption("--programs") / "descheduler").resolve()
    if not program.exists():
        pytest.skip(f"{program} not found: see docs/real-nodes.md")
    policy = yaml.safe_load((generate.ROOT / "deploy/examples/descheduler.yaml").read_text())
    plugins = {it["name"]: it["args"] for it in policy["profiles"][0]["pluginConfig"]}
    plugins["PodLifeTime"]["conditions"][0]["minTimeSinceLastTransitionSeconds"] = 0
    file = STATE / "descheduler.yaml"
    file.write_text(yaml.safe_dump(policy))
    flags: list[str | Path] = ["--kubeconfig", KUBECONFIG, "--policy-config-file", file]

    async def run() -> None:
        with (LOGS / "descheduler.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(program, *flags, stdout=log, stderr=log)
        async with asyncio.timeout(WITHIN):
            assert await process.wait() == 0

    # On a cluster of one node it does nothing.
    other: Any = Node.from_dict({"metadata": {"name": "other"}, "spec": {"unschedulable": True}})
    await bare.client.create(other)
    yield run
    await bare.client.delete(Node, "other")


async def test_the_descheduler_moves_a_pod_from_a_quarantined_gpu(cluster, autoclave, evict):
    """The Job does not count it as a failure."""
    await cluster.hold("others", gpus=GPUS - 1)
    [sick] = await autoclave.devices(bool, index=int(*{str(index) for index in range(GPUS)} - cluster.gpus("others")))
    before = waiting(autoclave)
    autoclave.service.end(SIGKILL)
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    template = {"spec": cluster.spec(container("-for", "50ms"))}
    await cluster.create_job("one", {"backoffLimit": 0, "podFailurePolicy": {"rules": [ignored]}, "template": template})
    await until_waiting(autoclave, before + 1)
    drills.remap(SIMULATED, sick.device, failed=True)
    await autoclave.up()
    [name] = set(await cluster.names()) - {"others"}
    await cluster.until(Pod, name, cannot_start)
    await cluster.delete("others")
    await evict()
    await cluster.gone(name)
    await cluster.until(Job, "one", lambda job: job.status.succeeded == 1)
    drills.heal(SIMULATED, sick.device)
    await autoclave.reinstate(sick.device)


def cannot_start(pod):
    """Whether the pod's container waits, as its status shows it."""
    states = [it.state for it in pod.status.containerStatuses or ()]
    return any(it.waiting is not None and it.waiting.reason == "CreateContainerConfigError" for it in states)


def waiting(autoclave):
    """How many pods were given a GPU while the service was away."""
    return autoclave.plugin.log.read_text().count("the containers wait for the service")


async def until_waiting(autoclave, pods):
    await files.until(autoclave.plugin.log, lambda: waiting(autoclave) >= pods)
