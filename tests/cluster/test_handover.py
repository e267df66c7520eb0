"""Hand-overs between pods. Each pod reads every byte of its GPUs and fills them with its own secret."""

import asyncio

import pytest
from lightkube.resources.batch_v1 import Job

from tests.cluster.cluster import container


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


@pytest.mark.xfail(reason="the plugin waits no longer than the kubelet waits for the container", strict=False)
async def test_of_ten_pods_after_force_deletes_one_is_refused(cluster, autoclave):
    """A force delete frees the GPUs in the kubelet while the container, which ignores SIGTERM, runs on for 2 s."""
    phases = []
    for number in range(10):
        await autoclave.clean()
        await cluster.offered(4)
        await cluster.hold(f"first-{number}", "-stubborn", gpus=4)
        await cluster.delete(f"first-{number}", grace=0)
        await cluster.create(f"second-{number}", container("-for", "100ms", gpus=4))
        phases.append((await cluster.ended(f"second-{number}")).status.phase)
    assert phases.count("Failed") <= 1, await cluster.refused()


@pytest.mark.parametrize("gpus", [1, 4])
async def test_an_init_container_and_its_pod_share_gpus(cluster, gpus):
    """What the pod may find is its own; the next pod finds nothing."""
    init = container("-for", "300ms", name="init", gpus=gpus)
    await cluster.create("first", container("-for", "300ms", gpus=gpus), initContainers=[init])
    first = await cluster.ended("first")
    assert first.status.phase == "Succeeded", first.status.message
    await cluster.hold("second", gpus=4)


@pytest.mark.usefixtures("load")
async def test_no_pod_of_a_burst_fails(cluster):
    """Eight pods for four GPUs, five times."""
    for burst in range(5):
        names = [f"burst-{burst}-{number}" for number in range(8)]
        await asyncio.gather(*(cluster.create(name, container("-for", "1s")) for name in names))
        await asyncio.gather(*map(cluster.ended, names))
    assert await cluster.refused() == []


@pytest.mark.usefixtures("load")
async def test_no_pod_of_a_job_fails(cluster):
    """A hundred pods, four at a time."""
    template = {"spec": cluster.spec(container("-for", "500ms"))}
    await cluster.create_job("many", {"completions": 100, "parallelism": 4, "backoffLimit": 200, "template": template})
    await cluster.until(Job, "many", lambda job: job.status.succeeded == 100)
    assert await cluster.refused() == []
