"""What a message of ListAndWatch does."""

import json

from demo.standins.checkpoint import NAME
from demo.standins.do_nothing_plugin import RESOURCE as GPU
from demo.standins.pods import Phase, Pod


async def test_x11_an_unhealthy_device_leaves_allocatable_but_not_capacity(kubelet, plugin):
    pod = Pod.of("a", {GPU: 1})
    await kubelet.run(pod)
    plugin.show(g0="Unhealthy", g1="any other word")
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 2})
    assert kubelet.capacity == {GPU: 4}
    assert kubelet.devices(GPU)["1"] == "any other word"
    assert pod.phase is Phase.RUNNING


async def test_x12_a_device_that_is_dropped_leaves_capacity_too(kubelet, plugin):
    plugin.show(g0=None)
    await kubelet.until(lambda: kubelet.capacity == {GPU: 3})
    assert kubelet.allocatable == {GPU: 3}


async def test_after_each_list_the_kubelet_writes_its_checkpoint(kubelet, plugin, directory):
    plugin.show(g1="Unhealthy")
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 3})
    content = json.loads((directory / NAME).read_text())
    assert content["Data"] == {"PodDeviceEntries": None, "RegisteredDevices": {GPU: ["0", "2", "3"]}}
