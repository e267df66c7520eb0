"""Register, the dial back, and what one plugin's end does to another. Ids: docs/kubelet-stand-in.md."""

import asyncio

import grpc
import pytest

from demo.standins.do_nothing_plugin import RESOURCE as GPU
from demo.standins.pods import Phase, Pod
from demo.standins.timing import Timing
from tests.patience import WITHIN


async def refusal(plugin, **options):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.register(**options)
    return caught.value.code(), caught.value.details()


async def test_x1_register_asks_for_the_options_then_for_the_list(kubelet, plugin):
    assert [call.method for call in kubelet.calls] == ["GetDevicePluginOptions", "ListAndWatch"]
    assert 14 < kubelet.calls[0].deadline < 16
    assert 13 < plugin.left["GetDevicePluginOptions"] < 16
    assert plugin.left["ListAndWatch"] is None or plugin.left["ListAndWatch"] > 1e9
    assert kubelet.capacity == kubelet.allocatable == {GPU: 4}
    assert kubelet.devices(GPU) == dict.fromkeys("0123", "Healthy")


async def test_x27_a_wrong_version_is_refused_as_unknown(node):
    async with node.kubelet() as kubelet:
        plugin = await node.plugin().serve()
        code, text = await refusal(plugin, version="v1alpha9")
        assert code is grpc.StatusCode.UNKNOWN
        assert 'requested API version "v1alpha9" is not supported by kubelet' in text
        assert kubelet.calls == []
        assert [one.resource for one in kubelet.registrations] == [GPU]


@pytest.mark.parametrize(
    "name",
    [
        "gpu",
        "kubernetes.io/gpu",
        "x.kubernetes.io/gpu",
        "requests.example.com/gpu",
        "example.com/",
        "a.b/" + "c" * 64,
        "a" * 245 + "/b",
    ],
)
async def test_r9_x27_names_that_are_no_extended_resources_are_refused(node, name):
    async with node.kubelet():
        plugin = await node.plugin().serve()
        assert await refusal(plugin, resource=name) == (
            grpc.StatusCode.UNKNOWN,
            f'the ResourceName "{name}" is invalid',
        )


async def test_x27_a_dead_endpoint_fails_after_the_dial_timeout(node):
    async with node.kubelet(timing=Timing(dial=0.2)):
        code, text = await refusal(node.plugin())
        assert code is grpc.StatusCode.UNKNOWN
        assert "failed to dial device plugin" in text


async def test_r1_x17_the_old_streams_end_stops_the_new_endpoint(kubelet, plugin, node):
    new = await node.plugin(socket="new.sock", ids="01").begin()
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 2})
    await plugin.stop()
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 0})
    assert kubelet.capacity == {GPU: 2}
    await asyncio.wait_for(new.ended.wait(), WITHIN)
    pod = Pod.of("late", {GPU: 1})
    await kubelet.admit(pod)
    assert "no healthy devices present" in pod.message
    await new.register()
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 2})


async def test_x18_serving_anew_after_the_old_stream_is_harmless(kubelet, plugin):
    await plugin.stop()
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 0})
    await plugin.begin()
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 4})


async def test_r10_x28_after_a_failed_register_dead_devices_stay(node):
    async with node.ready(timing=Timing(dial=0.2)) as (kubelet, plugin):
        await refusal(plugin, endpoint="nobody.sock")
        await plugin.stop()
        await kubelet.until(lambda: kubelet.calls[1].outcome)
        assert kubelet.allocatable == {GPU: 4}
        pod = Pod.of("haunted", {GPU: 1})
        assert (await kubelet.admit(pod)).phase is Phase.FAILED
        assert "code = Unavailable" in pod.message
        await plugin.begin()  # a new connection, which does not wait for the old one's back-off
        assert (await kubelet.run(Pod.of("a", {GPU: 1}))).phase is Phase.RUNNING


async def test_x16_a_plugin_that_goes_leaves_capacity_and_takes_allocatable(kubelet, plugin):
    pod = Pod.of("a", {GPU: 1})
    await kubelet.run(pod)
    await plugin.stop()
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 0})
    assert kubelet.capacity == {GPU: 4}
    assert pod.phase is Phase.RUNNING
    status = await kubelet.restart_container(pod, "main")
    assert status.reason == "CreateContainerConfigError"
    assert "has been stopped" in status.message
    await plugin.begin()
    await kubelet.keep_trying(pod, pause=lambda _: kubelet.registered(GPU))
    assert pod.statuses["main"].starts == 2


async def test_x33_a_forgotten_plugins_pods_keep_their_devices(node):
    async with node.ready(timing=Timing(stopped_grace=0.1)) as (kubelet, plugin):
        pod, late = Pod.of("a", {GPU: 1}), Pod.of("late", {GPU: 1})
        await kubelet.run(pod)
        await plugin.stop()
        await kubelet.until(lambda: kubelet.capacity == {GPU: 0})
        assert kubelet.allocatable == {GPU: 0}
        assert "endpoint not found in cache" in (await kubelet.restart_container(pod, "main")).message
        await kubelet.admit(late)
        assert "cannot allocate unregistered device" in late.message
        await plugin.begin()
        await kubelet.registered(GPU)
        assert await kubelet.sync(pod)
        assert kubelet.starts[-1].devices == kubelet.starts[0].devices
        assert kubelet.starts[-1].prestart
