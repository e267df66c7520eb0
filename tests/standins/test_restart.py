"""What a kubelet's death, restart and a node's reboot do. Ids: docs/kubelet-stand-in.md."""

import asyncio

import pytest

from demo.standins.checkpoint import NAME
from demo.standins.do_nothing_plugin import RESOURCE as GPU
from demo.standins.kubelet import NotRunning
from demo.standins.pods import Container, ContainerKind, ContainerState, Phase, Pod
from tests.patience import WITHIN


def calls_of(kubelet, *methods):
    return [(call.method, "".join(call.ids)) for call in kubelet.calls if call.method in methods]


async def during(kubelet, method):
    await kubelet.until(lambda: kubelet.calls[-1].method == method and not kubelet.calls[-1].outcome)


async def restart(kubelet, plugin=None):
    """Kill and start; a plugin that is given serves and registers anew before any pod is re-admitted."""
    await kubelet.kill()
    await kubelet.start()
    if plugin is not None:
        await plugin.stop()
        await plugin.begin()
        await kubelet.registered(GPU)


async def test_x15_a_stopped_kubelet_leaves_sockets_and_checkpoint(kubelet, plugin, directory):
    await kubelet.run(Pod.of("p", {GPU: 1}))
    before = (directory / NAME).read_text()
    await kubelet.stop()
    await asyncio.wait_for(plugin.ended.wait(), WITHIN)
    assert (directory / "kubelet.sock").is_socket()
    assert (directory / "do-nothing.sock").is_socket()
    assert (directory / NAME).read_text() == before


async def test_x15_a_starting_kubelet_removes_all_sockets_on_top(kubelet, directory):
    old = (directory / "kubelet.sock").stat()
    (directory / "file").touch()
    await kubelet.stop()
    await kubelet.start()
    assert not (directory / "do-nothing.sock").exists()
    assert (directory / "file").exists()
    new = (directory / "kubelet.sock").stat()
    assert (new.st_ino, new.st_ctime_ns) != (old.st_ino, old.st_ctime_ns)


async def test_x15_running_containers_are_not_admitted_again(kubelet, plugin):
    pod = Pod.of("p", {GPU: 1})
    await kubelet.run(pod)
    await restart(kubelet, plugin)
    assert kubelet.capacity == {GPU: 4}
    assert await kubelet.readmit() == []
    assert len(calls_of(kubelet, "Allocate", "PreStartContainer")) == 2
    await kubelet.restart_container(pod, "main")
    assert calls_of(kubelet, "Allocate", "PreStartContainer")[2:] == [("PreStartContainer", "0")]


async def test_r11_x19_without_the_plugin_a_crashed_container_skips_prestart(kubelet, plugin):
    pod = Pod.of("p", {GPU: 1})
    await kubelet.run(pod)
    await plugin.stop()
    await restart(kubelet)
    assert (await kubelet.restart_container(pod, "main")).state is ContainerState.RUNNING
    assert [start.prestart for start in kubelet.starts] == [True, False]
    assert kubelet.starts[1].devices == {GPU: ("0",)}


async def test_r5_a_completed_init_container_prevents_another_admission(kubelet):
    pod = Pod("p", (Container("i", {GPU: 1}, ContainerKind.INIT), Container("a", {GPU: 1})))
    await kubelet.run(pod)
    await restart(kubelet)
    assert await kubelet.readmit() == [pod]
    assert "no healthy devices present" in pod.message
    assert pod.statuses["a"].state is ContainerState.TERMINATED


async def test_x20_after_a_reboot_a_pod_before_the_plugin_fails(kubelet, plugin):
    pod = Pod.of("p", {GPU: 1})
    await kubelet.run(pod)
    await plugin.stop()
    await kubelet.reboot()
    await kubelet.start()
    assert await kubelet.readmit() == [pod]
    assert pod.reason == "UnexpectedAdmissionError"
    await plugin.begin()
    await kubelet.registered(GPU)
    assert pod.phase is Phase.FAILED


async def test_x21_after_a_reboot_a_pod_needs_only_prestart(kubelet, plugin):
    pod = Pod.of("p", {GPU: 1})
    await kubelet.run(pod)
    await kubelet.reboot()
    await kubelet.start()
    await plugin.stop()
    await plugin.begin()
    await kubelet.registered(GPU)
    assert await kubelet.readmit() == []
    assert await kubelet.sync(pod)
    wanted = [("Allocate", "0"), ("PreStartContainer", "0"), ("PreStartContainer", "0")]
    assert calls_of(kubelet, "Allocate", "PreStartContainer") == wanted
    assert pod.statuses["main"].starts == 2


async def test_x29_a_kubelet_killed_during_prestart_calls_it_again(kubelet, plugin):
    pod = Pod("p", (Container("a", {GPU: 1}),))
    await kubelet.admit(pod)
    plugin.hold["PreStartContainer"] = asyncio.Event()
    starting = asyncio.create_task(kubelet.sync(pod))
    await during(kubelet, "PreStartContainer")
    await kubelet.kill()
    with pytest.raises(NotRunning, match="ended during this action"):
        await asyncio.wait_for(starting, WITHIN)
    assert kubelet.calls[-1].outcome == "CANCELLED"
    plugin.hold.clear()
    await kubelet.start()
    await plugin.stop()
    await plugin.begin()
    await kubelet.registered(GPU)
    assert await kubelet.sync(pod)
    wanted = [("Allocate", "0"), ("PreStartContainer", "0"), ("PreStartContainer", "0")]
    assert calls_of(kubelet, "Allocate", "PreStartContainer") == wanted


async def test_x30_a_kubelet_killed_during_allocate_asks_again(kubelet, plugin):
    deleted, pod = Pod.of("deleted", {GPU: 1}), Pod.of("p", {GPU: 1})
    await kubelet.run(deleted)
    await kubelet.delete(deleted)
    plugin.hold["GetPreferredAllocation"] = asyncio.Event()
    plugin.hold["Allocate"] = asyncio.Event()
    plugin.hold["GetPreferredAllocation"].set()
    admitting = asyncio.create_task(kubelet.admit(pod))
    await during(kubelet, "Allocate")
    await kubelet.kill()
    with pytest.raises(NotRunning):
        await asyncio.wait_for(admitting, WITHIN)
    plugin.hold.clear()
    await kubelet.start()
    await plugin.stop()
    await plugin.begin()
    await kubelet.registered(GPU)
    assert await kubelet.readmit() == []
    wanted = [("GetPreferredAllocation", "123"), ("Allocate", "1")]
    assert calls_of(kubelet, "GetPreferredAllocation", "Allocate")[-2:] == wanted


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-9],
        lambda text: text.replace('"0"', '"1"', 1),
        lambda _: "{}",
        lambda _: "[]",
        lambda _: '{"Data":{"PodDeviceEntries":[7],"RegisteredDevices":{}},"Checksum":0}',
    ],
)
async def test_with_a_corrupt_checkpoint_all_devices_count_as_free(kubelet, plugin, directory, damage):
    pod = Pod.of("p", {GPU: 1})
    await kubelet.run(pod)
    await kubelet.kill()
    (directory / NAME).write_text(damage((directory / NAME).read_text()))
    await kubelet.start()
    assert len(kubelet.warnings) == 1
    assert kubelet.capacity == {}
    await plugin.stop()
    await plugin.begin()
    await kubelet.registered(GPU)
    await kubelet.run(Pod.of("next", {GPU: 1}))
    assert kubelet.starts[0].devices == kubelet.starts[1].devices
