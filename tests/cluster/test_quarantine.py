"""A sick GPU: what the scheduler, the pod's status and the next pod get to know."""

import pytest
from lightkube.resources.core_v1 import Pod

from scrubber.devices.simulated import drills
from tests.cluster.autoclave import SIMULATED
from tests.cluster.cluster import health


async def test_no_pod_gets_a_sick_idle_gpu(cluster, autoclave):
    [sick] = await autoclave.devices(bool, index=0)
    drills.xid(SIMULATED, sick.device, 79)
    await cluster.offered(3)
    await cluster.hold("others", gpus=3)
    assert cluster.gpus("others") == {"1", "2", "3"}
    await autoclave.reinstate(sick.device)
    await cluster.offered(4)


@pytest.mark.gate("ResourceHealthStatus")
async def test_the_status_of_a_pod_shows_its_sick_gpu(cluster, autoclave):
    """The pod goes on; the next pod does not get the GPU."""
    await cluster.hold("holder")
    pod = await cluster.until(Pod, "holder", health)
    [gpu] = health(pod)
    assert health(pod) == {gpu: "Healthy"}
    drills.remap(SIMULATED, gpu)
    await cluster.until(Pod, "holder", lambda pod: health(pod) == {gpu: "Unhealthy"})
    await cluster.said("holder", "INTACT", more=4)
    await cluster.delete("holder")
    await cluster.hold("next", gpus=3)
    assert cluster.gpus("holder").isdisjoint(cluster.gpus("next"))
    await autoclave.devices(lambda device: device.state == "quarantined", index=int(*cluster.gpus("holder")))
    await autoclave.reinstate(gpu)
