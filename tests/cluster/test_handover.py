"""Hand-overs between pods. Each pod reads every byte of its GPUs and fills them with its own secret."""

import asyncio
import json

import pytest
from lightkube.resources.batch_v1 import Job

from tests.cluster.cluster import container
from tests.cluster.programs import MANIFESTS, NODE


async def test_the_next_pod_finds_no_byte_of_the_last(cluster):
    await cluster.hold("first", gpus=4)
    await cluster.delete("first")
    await cluster.hold("second", gpus=4)
    assert cluster.words("second").count("CLEAN") == 4
    assert cluster.words("first")[-1] == "TERM"


async def test_without_autoclave_the_next_pod_finds_the_secret(pods, floor):
    """What the other tests rely on: the pods would find it."""
    await pods.offered(4, floor)
    for name in ("first", "second"):
        await pods.create(name, container("-for", "1s", gpus=4, resource=floor))
        await pods.ended(name)
    assert "CLEAN" in pods.words("first")
    assert "DIRTY" in pods.words("second")


@pytest.mark.long
async def test_force_deletes_refuse_at_most_one_pod_in_ten(cluster, autoclave):
    """A force delete frees the GPUs in the kubelet while the container, which ignores SIGTERM, runs on for 2 s.

    In the first seconds of a pod, the kubelet's own work on the pod delays the end of the container by up to 2 s more.
    """
    phases = []
    for number in range(10):
        await autoclave.clean()
        await cluster.offered(4)
        await cluster.hold(f"first-{number}", "-stubborn", gpus=4)
        await cluster.said(f"first-{number}", "INTACT", more=12)
        await cluster.delete(f"first-{number}", grace=0)
        await cluster.create(f"second-{number}", container("-for", "100ms", gpus=4))
        phases.append((await cluster.ended(f"second-{number}")).status.phase)
    assert phases.count("Failed") <= 1, await cluster.refused()


@pytest.mark.usefixtures("refusing")
async def test_where_the_fence_holds_force_deletes_refuse_no_pod(cluster):
    """The second pod is admitted at once, and the fence keeps its containers off the GPUs meanwhile."""
    await force_deletes(cluster)


async def force_deletes(cluster):
    for number in range(10):
        await cluster.hold(f"first-{number}", "-stubborn", gpus=4)
        await cluster.delete(f"first-{number}", grace=0)
        await cluster.create(f"second-{number}", container("-for", "100ms", gpus=4))
        await cluster.ended(f"second-{number}")
    assert await cluster.refused() == []


async def test_observe_refuses_no_pod_and_proves_nothing(pods, autoclave):
    """The ledger says so; a policy that enforces clears the GPUs before the next pod."""
    autoclave.rule(mode="observe")
    for name in ("first", "second"):
        await pods.create(name, container("-for", "1s", gpus=4))
        await pods.ended(name)
    assert "DIRTY" in pods.words("second")
    assert await autoclave.devices(lambda device: device.state != "clean")
    autoclave.rule()
    await pods.hold("third", gpus=4)
    assert pods.words("third").count("CLEAN") == 4


@pytest.mark.parametrize("gpus", [1, 4])
async def test_an_init_container_and_its_pod_share_gpus(cluster, gpus):
    """What the pod may find is its own; the next pod finds nothing."""
    init = container("-for", "300ms", name="init", gpus=gpus)
    await cluster.create("first", container("-for", "300ms", gpus=gpus), initContainers=[init])
    first = await cluster.ended("first")
    assert first.status.phase == "Succeeded", first.status.message
    await cluster.hold("second", gpus=4)


async def test_a_sidecar_and_its_pod_have_gpus_of_their_own(cluster):
    sidecar = container(name="sidecar", gpus=2) | {"restartPolicy": "Always"}
    await cluster.create("first", container(gpus=2), initContainers=[sidecar])
    await cluster.said("first", "HOLDING", "sidecar")
    await cluster.said("first", "HOLDING")
    await cluster.delete("first")
    await cluster.hold("second", gpus=4)


async def test_a_static_pod_holds_its_gpus(cluster):
    """The kubelet reads it from a file."""
    metadata = {"name": "static", "namespace": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": cluster.spec(container(gpus=3))}
    file = MANIFESTS / "static.json"
    file.write_text(json.dumps(pod))
    name = f"static-{NODE}"
    await cluster.said(name, "HOLDING")
    await cluster.hold("beside")
    file.unlink()
    await cluster.gone(name)
    await cluster.hold("next", gpus=3)
    assert cluster.gpus("next") == cluster.gpus(name)


@pytest.mark.long
@pytest.mark.usefixtures("load")
async def test_no_pod_of_a_burst_fails(cluster):
    """Eight pods for four GPUs, five times."""
    for burst in range(5):
        names = [f"burst-{burst}-{number}" for number in range(8)]
        await asyncio.gather(*(cluster.create(name, container("-for", "1s")) for name in names))
        await asyncio.gather(*map(cluster.ended, names))
    assert await cluster.refused() == []


@pytest.mark.long
@pytest.mark.usefixtures("load")
async def test_no_pod_of_a_job_fails(cluster):
    """A hundred pods, four at a time."""
    template = {"spec": cluster.spec(container("-for", "500ms"))}
    await cluster.create_job("many", {"completions": 100, "parallelism": 4, "backoffLimit": 200, "template": template})
    await cluster.until(Job, "many", lambda job: job.status.succeeded == 100)
    assert await cluster.refused() == []
