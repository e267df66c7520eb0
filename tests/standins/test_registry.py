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


async def test_x34_a_new_kubelet_asks_the_registration_socket_again(node, registry):
    async with node.kubelet(registry=registry) as kubelet:
        await appear(node.plugin(), registry)
        await kubelet.registered(GPU)
        await kubelet.kill()
        await kubelet.start()
        await kubelet.until(lambda: [call.method for call in kubelet.calls].count("GetInfo") == 2)


async def test_x34_an_endpoint_in_the_registry_survives_a_kubelet_start(node, registry):
    async with node.kubelet(registry=registry) as kubelet:
        plugin = node.plugin()
        plugin.path = registry / "do-nothing.sock"
        await plugin.serve()
        await kubelet.registered(GPU)
        await kubelet.until(lambda: plugin.notified)
        await kubelet.kill()
        await kubelet.start()
        await kubelet.registered(GPU)
        await kubelet.until(lambda: plugin.notified == [(True, ""), (True, "")])


async def test_removing_the_registration_socket_deregisters(node, registry):
    async with node.kubelet(registry=registry) as kubelet:
        plugin = await appear(node.plugin(), registry)
        await kubelet.until(lambda: kubelet.registrations)
        await kubelet.registered(GPU)
        (registry / "plugin-reg.sock").unlink()
        await kubelet.until(lambda: kubelet.allocatable == {GPU: 0})
        assert kubelet.capacity == {GPU: 4}
        await asyncio.wait_for(plugin.ended.wait(), WITHIN)


async def test_a_plugin_that_returns_under_its_name_is_registered(node, registry):
    async with node.kubelet(registry=registry) as kubelet:
        plugin = await appear(node.plugin(), registry)
        await kubelet.registered(GPU)
        await plugin.stop()
        await kubelet.until(lambda: kubelet.allocatable == {GPU: 0})
        await appear(plugin, registry)
        await kubelet.until(lambda: kubelet.allocatable == {GPU: 4})


async def test_hidden_sockets_and_plain_files_are_left_alone(node, registry):
    (registry / "file.sock").touch()
    async with node.kubelet(registry=registry) as kubelet:
        await appear(node.plugin(), registry, ".hidden.sock")
        await appear(node.plugin(resource="example.com/seen", socket="seen.sock"), registry, "seen-reg.sock")
        await kubelet.registered("example.com/seen")
        assert kubelet.capacity == {"example.com/seen": 4}
        assert list(kubelet._life._registry._work) == ["seen-reg.sock"]


async def test_a_socket_moved_over_another_is_a_new_plugin(node, registry):
    async with node.kubelet(registry=registry) as kubelet:
        old = await appear(node.plugin(), registry)
        await kubelet.registered(GPU)
        await kubelet.until(lambda: old.notified)
        await appear(node.plugin(socket="new.sock", ids="01"), registry, ".new.sock")
        (registry / ".new.sock").rename(registry / "plugin-reg.sock")
        await kubelet.until(lambda: kubelet.capacity == {GPU: 2})
        await asyncio.wait_for(old.ended.wait(), WITHIN)


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


async def test_a_plugin_with_a_dead_endpoint_learns_why(node, registry):
    async with node.kubelet(registry=registry, timing=Timing(dial=0.2)) as kubelet:
        plugin = node.plugin()
        await appear(plugin, registry)
        plugin.path = registry / "nowhere"
        await kubelet.until(lambda: plugin.notified)
        plugin.path = node.directory / "do-nothing.sock"
        await kubelet.registered(GPU)


async def test_a_socket_removed_during_the_dial_leaves_nothing_behind(node, registry):
    async with node.kubelet(registry=registry) as kubelet:
        plugin = node.plugin()
        plugin.hold["GetDevicePluginOptions"] = asyncio.Event()
        await appear(plugin, registry)
        await kubelet.until(lambda: kubelet.calls and kubelet.calls[-1].method == "GetDevicePluginOptions")
        (registry / "plugin-reg.sock").unlink()
        await kubelet.until(lambda: kubelet.calls[-1].outcome == "CANCELLED")
        assert kubelet._life.clients._latest == {}


async def test_a_slow_get_info_is_given_up_and_tried_again(node, registry):
    async with node.kubelet(registry=registry, timing=Timing(get_info=0.1, registry_retry=0.05)) as kubelet:
        plugin = node.plugin()
        plugin.fail["GetInfo"] = "not yet"
        await appear(plugin, registry)
        await kubelet.until(lambda: len(kubelet.registrations) >= 2)
        assert "not yet" in kubelet.registrations[0].error
        plugin.fail.clear()
        await kubelet.registered(GPU)
