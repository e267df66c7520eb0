"""Autoclave installed with the chart, from the image: example pods, reports to Kubernetes, rights, updates."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import AsyncClient, KubeConfig
from lightkube.config import models
from lightkube.core.exceptions import ApiError
from lightkube.resources.admissionregistration_v1 import ValidatingAdmissionPolicy
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Event, Node, Pod, ServiceAccountToken
from lightkube.types import CascadeType

from deploy import generate
from plugin.cluster import node_report
from scrubber.devices.simulated import drills, layout
from tests.cluster import programs
from tests.cluster.cluster import container
from tests.cluster.escapes import escapes
from tests.cluster.installed import GPUS, SIMULATED, apply, without_storage
from tests.cluster.programs import NODE
from tests.deploy import manifests
from tests.patience import WITHIN

EXAMPLES = Path(__file__).parents[2] / "deploy/examples"
TOOLS = ("sh", "dd", "grep", "sleep")  # of busybox, that the example pods use
SPACE = generate.NAMESPACE
# The overlay for simulated GPUs, and the reports to Kubernetes.
VALUES = {
    **generate.OVERLAYS["simulated"],
    "clusterReports": {"enabled": True},
    "directories": {"cdi": "/var/run/cdi"},  # /etc is not the node's own
}


@pytest.fixture
async def cluster(bare, installed):
    """No pods, and clean GPUs that the scheduler may place; no pod of the test finds bytes of another."""
    await installed.ready()
    await bare.offered(GPUS)
    yield bare
    assert bare.faults() == []


@pytest.fixture(scope="module")
def busybox(node):
    """The image of the examples, from Debian's package, because no registry is at hand."""
    if (program := shutil.which("busybox")) is None:
        pytest.skip("not installed: busybox-static")
    tools = {f"bin/{tool}": Path(program) for tool in TOOLS}
    node.load(programs.write_image("docker.io/library/busybox:1.37", tools, "/bin/sh"))


def example(name):
    return yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())


@pytest.mark.usefixtures("busybox")
async def test_the_example_pod_finds_no_residue(cluster):
    await apply(cluster, [example("writer")])
    await cluster.until(Pod, "writer", lambda pod: pod.status.phase == "Running")
    lines = cluster.client.log("writer", follow=True)
    async with asyncio.timeout(WITHIN):
        said = [(await anext(lines)).strip() for _ in range(GPUS)]
    assert said == [f"wrote a secret into /dev/simulated-gpu{index}" for index in range(GPUS)]
    await cluster.delete("writer")
    await cluster.gone("writer")
    await apply(cluster, [example("reader")])
    reader = await cluster.ended("reader")
    assert [line.strip() async for line in cluster.client.log("reader")] == ["clean: no secret found"]
    assert reader.status.phase == "Succeeded"


async def test_the_pod_of_helm_test_finds_the_node_in_order(cluster):
    [pod] = [doc for doc in manifests.loaded(dict(VALUES)) if doc["kind"] == "Pod"]
    without_storage(pod["spec"])
    await apply(cluster, [pod])
    tested = await cluster.until(
        Pod, pod["metadata"]["name"], lambda pod: pod.status.phase in {"Succeeded", "Failed"}, SPACE
    )
    log = cluster.client.log(tested.metadata.name, namespace=SPACE)
    assert tested.status.phase == "Succeeded", [line async for line in log]


def condition(node) -> tuple[str, str]:
    found = [it for it in node.status.conditions if it.type == node_report.CONDITION]
    return (found[0].status, found[0].reason) if found else ("", "")


async def test_kubernetes_learns_that_all_gpus_of_a_node_are_out(cluster, installed):
    """The plugin's token has the rights of the chart, and no others."""
    await cluster.until(Node, NODE, lambda node: condition(node) == ("True", "AllDevicesHealthy"))
    devices = {device.device for device in await installed.clean()}
    for device in devices:
        drills.xid(SIMULATED, device, 79)
    await cluster.until(Node, NODE, lambda node: condition(node) == ("False", "AllDevicesOut"))
    reported = set()
    async with asyncio.timeout(WITHIN):
        async for _, event in cluster.client.watch(Event, namespace="default", fields={"reason": "DeviceQuarantined"}):
            reported |= {device for device in devices if device in event.message}
            if reported == devices:
                break
    for device in devices:
        await installed.reinstate(device)
    await cluster.until(Node, NODE, lambda node: condition(node) == ("True", "AllDevicesHealthy"))


@pytest.fixture
async def plugin(cluster, installed):
    """The API server, as the plugin's token opens it."""
    [pod] = await installed.pods("autoclave-plugin")
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod}
    request = ServiceAccountToken.from_dict({"metadata": {}, "spec": {"audiences": [], "boundObjectRef": bound}})
    made = await cluster.client.create(request, "autoclave-plugin", namespace=SPACE)
    server = models.Cluster(programs.API, certificate_auth=str(programs.CERTIFICATE))
    config = KubeConfig.from_one(cluster=server, user=models.User(token=made.status.token))
    async with AsyncClient(config, trust_env=False) as client:
        yield client


async def test_the_plugin_may_change_only_its_own_reports(cluster, plugin):
    """A second node exists, on which the DaemonSets do not run."""
    spec = {"taints": [{"key": "test", "effect": "NoSchedule"}]}
    await cluster.client.create(Node.from_dict({"metadata": {"name": "other"}, "spec": spec}))
    condition = {"type": node_report.CONDITION, "status": "True", "reason": "Test", "message": ""}
    refusals = {
        "tells of its own node only": plugin.patch(Node.Status, "other", {"status": {"conditions": [condition]}}),
        "changes no labels": plugin.patch(Node.Status, NODE, {"metadata": {"labels": {"a": "b"}}}),
        'cannot patch resource "nodes"': plugin.patch(Node, NODE, {"spec": {"unschedulable": True}}),
        'cannot delete resource "nodes"': plugin.delete(Node, "other"),
        'cannot get resource "pods"': plugin.get(Pod, "any", namespace=SPACE),
    }
    for text, request in refusals.items():
        with pytest.raises(ApiError, match=text):
            await request
    await cluster.client.delete(Node, "other")


@pytest.mark.parametrize(
    ("text", "end"),
    [("name: mine", "Complete"), ("name: mine\ndefaults: {mode: enforced}", "Failed")],
    ids=["good", "with a fault"],
)
async def test_the_job_before_an_installation_fails_for_a_faulty_policy(cluster, text, end):
    """Helm rolls out nothing after a hook that has failed. `kubectl describe` of its pod names the fault."""
    name = "autoclave-check-policies"
    hook = [
        doc
        for doc in manifests.loaded({**VALUES, "policy": {"inline": f"{text}\n"}})
        if doc["metadata"]["name"] == name
    ]
    without_storage(hook[1]["spec"]["template"]["spec"])
    await apply(cluster, hook)
    await cluster.until(Job, name, lambda job: end_of(job) != "", SPACE)
    labels: Any = {"batch.kubernetes.io/job-name": name}
    [pod] = [pod async for pod in cluster.client.list(Pod, namespace=SPACE, labels=labels)]
    last = pod.status.containerStatuses[0].state.terminated.message or ""
    job = await cluster.client.get(Job, name, namespace=SPACE)
    await cluster.client.delete(Job, name, namespace=SPACE, cascade=CascadeType.FOREGROUND)
    await cluster.client.delete(ConfigMap, name, namespace=SPACE)
    await cluster.until(Job, name, lambda job: job is None, SPACE)
    assert (end_of(job), "defaults.mode: found text" in last) == (end, end == "Failed"), last


def end_of(job) -> str:
    """How a job has ended; empty while it has not."""
    conditions = job.status.conditions if job is not None and job.status is not None else None
    ends = [it.type for it in conditions or () if it.status == "True" and it.type in {"Complete", "Failed"}]
    return ends[0] if ends else ""


async def test_no_other_pod_mounts_the_sockets(cluster):
    volumes = [{"name": "journals", "hostPath": {"path": "/run/autoclave/doors"}}]
    with pytest.raises(ApiError, match="for its own pods only"):
        await cluster.create("curious", container(gpus=0), volumes=volumes)


async def test_the_api_server_warns_of_no_expression(cluster, installed):
    """It checks the types in the expressions of admission policies."""
    for doc in [doc for doc in installed.objects if doc["kind"] == "ValidatingAdmissionPolicy"]:
        checked = await cluster.until(
            ValidatingAdmissionPolicy, doc["metadata"]["name"], lambda it: it.status and it.status.typeChecking
        )
        assert checked.status.typeChecking.expressionWarnings in (None, [])


async def test_no_pod_is_refused_in_updates_of_service_and_plugin(cluster, installed):
    """On each GPU one pod after another, during three updates. Between two plugins the kubelet itself rejects pods.

    It takes all GPUs for unhealthy when the first plugin ends its stream, until the next one has registered.
    """
    updates = asyncio.create_task(update_repeatedly(installed, 3))

    async def succession(which: str) -> None:
        number = 0
        while not updates.done():
            number += 1
            await cluster.create(f"{which}-{number}", container("-for", "100ms"))
            await cluster.ended(f"{which}-{number}")

    await asyncio.gather(updates, *map(succession, ("one", "other")))
    assert [it for it in await cluster.refused() if "no healthy devices present" not in it] == []
    await cluster.hold("last", gpus=GPUS)


async def update_repeatedly(installed, times: int) -> None:
    for _ in range(times):
        await asyncio.gather(*map(installed.update, ("autoclave-scrubber", "autoclave-plugin")))


@pytest.mark.usefixtures("refusing")
async def test_an_update_of_the_service_opens_no_gpu_to_others(cluster, installed):
    await cluster.hold("holder")
    [index] = map(int, cluster.gpus("holder"))
    gpu = layout.places(SIMULATED)[index]
    assert "REFUSED" in await escapes(cluster, "other", "its own /dev", gpu)
    await installed.refused(index, 1)
    await installed.update("autoclave-scrubber")
    await cluster.said("holder", "INTACT", more=4)
    assert "REFUSED" in await escapes(cluster, "another", "its own /dev", gpu)
    await installed.refused(index, 1)
    await cluster.hold("next")
    assert cluster.gpus("holder").isdisjoint(cluster.gpus("next"))
    await cluster.said("holder", "INTACT", more=4)
