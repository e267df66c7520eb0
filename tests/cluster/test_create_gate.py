"""The create gate on the real node: the container runtime asks, also where the kubelet does not."""

import asyncio
from signal import SIGKILL

from tests.cluster import files
from tests.cluster.autoclave import GPUS
from tests.cluster.cluster import container

KILLS = 10
ROUNDS = 13  # with four containers each: 52 starts without PreStartContainer


async def test_the_container_runtime_names_the_container_that_it_creates(cluster, autoclave):
    await cluster.hold("named")
    log = autoclave.service.log
    await files.until(log, lambda: '"pod": "default/named"' in log.read_text())


async def test_a_container_that_skipped_prestart_gets_a_clean_gpu(cluster, autoclave, node):
    """Between a restart of the kubelet and the registration, containers start without PreStartContainer."""
    autoclave.rule("{model: per-container}")
    names = [f"holder-{number}" for number in range(GPUS)]
    await asyncio.gather(*(cluster.create(name, container(), restartPolicy="Always") for name in names))
    await asyncio.gather(*(cluster.said(name, "HOLDING") for name in names))
    for _ in range(ROUNDS):
        autoclave.plugin.end(SIGKILL)
        node.kubelet.end(SIGKILL)
        node.kubelet.start()
        await cluster.offered(0)
        for name in names:
            cluster.crash(name)
        await asyncio.gather(*(cluster.said(name, "HOLDING", more=1) for name in names))
        await autoclave.up()
        await cluster.offered(GPUS)
    for name in names:
        assert cluster.words(name).count("CLEAN") == ROUNDS + 1
        assert "OWN" not in cluster.words(name)


async def test_ten_kills_of_the_service_fail_no_pod(cluster, autoclave):
    """Pods come while the service is away, and begin when it is back."""
    await cluster.hold("proof", gpus=GPUS)  # the gate is in force when the runtime has asked
    await cluster.delete("proof")
    await cluster.gone("proof")
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


def waiting(autoclave):
    """How many pods were given a GPU while the service was away."""
    return autoclave.plugin.log.read_text().count("the containers wait for the service")


async def until_waiting(autoclave, pods):
    await files.until(autoclave.plugin.log, lambda: waiting(autoclave) >= pods)
