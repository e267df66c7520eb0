"""Programs of the node end and come back while a pod uses its GPU."""

from signal import SIGKILL, SIGTERM

import pytest

from tests.cluster.autoclave import registered
from tests.cluster.cluster import container


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL], ids=["stopped", "killed"])
async def test_a_pod_keeps_its_gpu_while_the_kubelet_restarts(cluster, autoclave, node, number):
    await cluster.hold("holder", gpus=2)
    async with registered(autoclave.plugin.log):
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


async def test_a_container_started_without_the_plugin_keeps_its_bytes(cluster, autoclave, node):
    """Between a restart of the kubelet and the registration, containers start without PreStartContainer."""
    await cluster.create("holder", container(gpus=2), restartPolicy="Always")
    await cluster.said("holder", "HOLDING")
    autoclave.plugin.end(SIGKILL)
    node.kubelet.end(SIGKILL)
    node.kubelet.start()
    await cluster.offered(0)
    cluster.crash("holder")
    await cluster.said("holder", "HOLDING", more=1)
    assert "OWN" in cluster.words("holder")
    await autoclave.up()
    await cluster.hold("next", gpus=2)
    await cluster.said("holder", "INTACT", more=4)
    assert cluster.gpus("holder").isdisjoint(cluster.gpus("next"))
    await cluster.delete("holder")
    await cluster.gone("holder")
    await cluster.hold("last", gpus=2)


async def test_a_pod_deleted_without_kubelet_and_plugin_leaves_nothing(cluster, autoclave, node):
    """The kubelet's checkpoint names a pod that no longer exists, while its container, which ignores SIGTERM, runs."""
    await cluster.hold("first", "-stubborn", gpus=4)
    autoclave.plugin.end(SIGKILL)
    node.kubelet.end(SIGKILL)
    await cluster.delete("first", grace=0)
    await cluster.gone("first")
    node.kubelet.start()
    await cluster.offered(0)
    await autoclave.up()
    await cluster.offered(4)
    await cluster.hold("second", gpus=4)
