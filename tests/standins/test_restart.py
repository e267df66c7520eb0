"""What a kubelet's death, restart and a node's reboot do. Ids: docs/kubelet-stand-in.md."""

import asyncio

import pytest

from demo.standins.checkpoint import NAME
from demo.standins.do_nothing_plugin import RESOURCE as GPU
from demo.standins.kubelet import NotRunning
from demo.standins.pods import Container, ContainerKind, ContainerState, Phase, Pod
from tests.patience import WITHIN
from tests.standins.conftest import during


def calls_of(kubelet, *methods):
    return [(call.method, "".join(call.ids)) for call in kubelet.calls if call.method in methods]


async def test_x15_a_stopped_kubelet_leaves_sockets_and_checkpoint(kubelet, plugin, directory):
    await kubelet.run(Pod.of("p", {GPU: 1}))
    before = (directory / NAME).read_text()
    await kubelet.stop()
    await asyncio.wait_for(plugin.ended.wait(), WITHIN)
    assert (directory / "kubelet.sock").is_socket()
    assert (directory / "do-nothing.sock").is_socket()
    assert (directory / NAME).read_text() == before


async def test_x15_a_starting_kubelet_removes_all_sockets_on_top(kubelet, node, directory):
    (directory / "sub").mkdir()
    below = await node.plugin(socket="sub/p.sock").serve()
    old = (directory / "kubelet.sock").stat()
    (directory / "file").touch()
    await kubelet.stop()
    await kubelet.start()
    assert not (directory / "do-nothing.sock").exists()
    assert below.path.is_socket()
    assert (directory / "file").exists()
    new = (directory / "kubelet.sock").stat()
    assert (new.st_ino, new.st_ctime_ns) != (old.st_ino, old.st_ctime_ns)


async def test_r5_a_completed_init_container_prevents_another_admission(kubelet):
    pod = Pod("p", (Container("i", {GPU: 1}, ContainerKind.INIT), Container("a", {GPU: 1})))
    await kubelet.run(pod)
    await kubelet.kill()
    await kubelet.start()
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
