"""Discovery through a plugins_registry directory."""

import asyncio

import pytest

from demo.standins.do_nothing_plugin import RESOURCE as GPU
from demo.standins.pods import Phase, Pod
from demo.standins.timing import Timing
from tests.patience import WITHIN


@pytest.fixture
def registry(directory):
    made = directory / "r"
    made.mkdir()
    return made


async def appear(plugin, registry, name="plugin-reg.sock"):
    """Serve on the endpoint and in the registry; the endpoint lies wherever the plugin likes."""
    await plugin.serve(registry / name)
    return plugin


async def test_x34_a_socket_is_asked_connected_and_notified_in_order(node, registry):
    async with node.kubelet(registry=registry) as kubelet:
        plugin = await appear(node.plugin(), registry)
        await kubelet.registered(GPU)
        await kubelet.until(lambda: kubelet.calls[-1].outcome)
        methods = [call.method for call in kubelet.calls]
        assert methods == ["GetInfo", "GetDevicePluginOptions", "ListAndWatch", "NotifyRegistrationStatus"]
        assert plugin.notified == [(True, "")]
        assert kubelet.calls[0].deadline == 1.0
        assert plugin.left["GetInfo"] < 1.2
        assert plugin.left["NotifyRegistrationStatus"] < 5.2
        assert (await kubelet.run(Pod.of("p", {GPU: 1}))).phase is Phase.RUNNING


async def test_removing_the_registration_socket_deregisters(node, registry):
    async with node.kubelet(registry=registry) as kubelet:
        plugin = await appear(node.plugin(), registry)
        await kubelet.until(lambda: kubelet.registrations)
        await kubelet.registered(GPU)
        (registry / "plugin-reg.sock").unlink()
        await kubelet.until(lambda: kubelet.allocatable == {GPU: 0})
        assert kubelet.capacity == {GPU: 4}
        await asyncio.wait_for(plugin.ended.wait(), WITHIN)


async def test_hidden_sockets_and_plain_files_are_left_alone(node, registry):
    (registry / "file.sock").touch()
    async with node.kubelet(registry=registry) as kubelet:
        await appear(node.plugin(), registry, ".hidden.sock")
        await appear(node.plugin(resource="example.com/seen", socket="seen.sock"), registry, "seen-reg.sock")
        await kubelet.registered("example.com/seen")
        assert kubelet.capacity == {"example.com/seen": 4}
        assert list(kubelet._life._registry._work) == ["seen-reg.sock"]


@pytest.mark.parametrize(
    ("knob", "value", "text"),
    [
        ("type", "CSIPlugin", "no handler registered for plugin type: CSIPlugin"),
        ("versions", ["v1alpha1"], "plugin validation failed with err: requested API version"),
        ("resource", "gpu", 'the ResourceName "gpu" is invalid'),
    ],
)
async def test_a_refused_plugin_learns_why_and_is_asked_again(node, registry, knob, value, text):
    async with node.kubelet(registry=registry, timing=Timing(registry_retry=0.05)) as kubelet:
        plugin = node.plugin()
        setattr(plugin, knob, value)
        await appear(plugin, registry)
        await kubelet.until(lambda: len(plugin.notified) >= 2)
        assert plugin.notified[0][0] is False
        assert text in plugin.notified[0][1]
        assert kubelet.capacity == {}
