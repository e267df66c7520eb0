"""Programs of the node end and come back while a pod uses its GPU."""

from signal import SIGKILL, SIGTERM

import pytest

from tests.cluster.cluster import container


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL], ids=["stopped", "killed"])
async def test_a_pod_keeps_its_gpu_while_the_kubelet_restarts(cluster, autoclave, node, number):
    await cluster.hold("holder", gpus=2)
    async with autoclave.registered():
        node.kubelet.end(number)
        node.kubelet.start()
    await cluster.said("holder", "INTACT", more=4)
    await cluster.hold("next", gpus=2)
    assert cluster.gpus("holder").isdisjoint(cluster.gpus("next"))


@pytest.mark.parametrize("killed", [("plugin",), ("service",), ("plugin", "service")], ids="-".join)
async def test_a_pod_keeps_its_gpu_while_autoclave_is_killed(cluster, autoclave, killed):
    await cluster.hold("holder", gpus=2)
    for name in killed:
        getattr(autoclave, name).end(SIGKILL)
    await cluster.said("holder", "INTACT", more=4)
    await autoclave.up()
    await cluster.hold("next", gpus=2)
    await cluster.said("holder", "INTACT", more=4)
    assert cluster.gpus("holder").isdisjoint(cluster.gpus("next"))


async def test_a_gpu_released_while_autoclave_was_away_is_clean(cluster, autoclave):
    await cluster.hold("first", gpus=4)
    autoclave.plugin.end(SIGKILL)
    autoclave.service.end(SIGKILL)
    await cluster.delete("first")
    await cluster.gone("first")
    await autoclave.up()
    await cluster.hold("second", gpus=4)


async def test_a_pod_waits_while_the_service_restarts(cluster, autoclave):
    autoclave.service.end(SIGTERM)
    autoclave.service.start()
    await cluster.hold("pod")


async def test_a_container_restarts_on_its_gpus(cluster):
    restarting = container("-for", "500ms", "-exit", "1", gpus=4)
    await cluster.create("first", restarting, restartPolicy="OnFailure")
    await cluster.said("first", "HOLDING", more=3)
    await cluster.delete("first")
    await cluster.hold("second", gpus=4)
