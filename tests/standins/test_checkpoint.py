"""The checkpoint file, byte for byte where a real one could be compared."""

import base64
import json

import pytest

from demo.standins import checkpoint
from demo.standins.checksum import DeviceEntry, checksum
from demo.standins.do_nothing_plugin import RESOURCE as GPU
from demo.standins.pods import Container, ContainerKind, Pod
from plugin.kubelet_api import deviceplugin_pb2

TEGRA = DeviceEntry(
    PodUID="bf52b2cd-b611-4e79-86b1-280b283185c3",
    ContainerName="check",
    ResourceName="nvidia.com/gpu",
    DeviceIDs={"-1": ["tegra"]},
    AllocResp="Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh",
)


def test_the_checksum_of_a_real_kubelets_file_without_pods():
    assert checksum(None, {"nvidia.com/gpu": ["GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"]}) == 3952659280


def test_the_checksum_of_a_real_kubelets_file_with_a_pod():
    assert checksum([TEGRA], {"nvidia.com/gpu": ["tegra"]}) == 3660592824


def test_the_checksum_sorts_nodes_by_number_and_resources_by_name():
    nodes: DeviceEntry = {**TEGRA, "DeviceIDs": {"10": ["b"], "-1": ["c"], "2": ["a"]}}
    sorted_nodes: DeviceEntry = {**TEGRA, "DeviceIDs": {"-1": ["c"], "2": ["a"], "10": ["b"]}}
    by_name: DeviceEntry = {**TEGRA, "DeviceIDs": {"10": ["a"], "2": ["b"], "-1": ["c"]}}
    assert checksum([nodes], {"b/x": [], "a/x": []}) == checksum([sorted_nodes], {"a/x": [], "b/x": []})
    assert checksum([nodes], {}) != checksum([by_name], {})


def content(directory):
    return json.loads((directory / checkpoint.NAME).read_text())


async def test_the_file_says_who_holds_what_with_the_plugins_answer(kubelet, directory):
    pod = Pod.of("p", {GPU: 2})
    await kubelet.admit(pod)
    data = content(directory)["Data"]
    (entry,) = data["PodDeviceEntries"]
    assert (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]) == (pod.uid, "main", GPU)
    assert entry["DeviceIDs"] == {"-1": ["0", "1"]}
    answer = deviceplugin_pb2.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
    assert answer.envs == {"ANSWER": "yes"}
    assert data["RegisteredDevices"] == {GPU: ["0", "1", "2", "3"]}


async def test_devices_stand_under_each_of_their_numa_nodes(node, directory):
    plugin = node.plugin()
    plugin.nodes = {"0": [1], "1": [0, 1]}
    async with node.kubelet() as kubelet:
        await plugin.begin()
        await kubelet.registered(GPU)
        pod = Pod.of("p", {GPU: 3})
        await kubelet.admit(pod)
        entry = content(directory)["Data"]["PodDeviceEntries"][0]
        assert entry["DeviceIDs"] == {"-1": ["2"], "0": ["1"], "1": ["0", "1"]}
        assert kubelet.held(pod) == {"main": {GPU: ("0", "1", "2")}}


async def test_it_is_written_at_the_end_of_each_containers_allocate(node, directory):
    async with node.ready(offers={"ids": "01"}) as (kubelet, _):
        pod = Pod("p", (Container("a", {GPU: 1}), Container("b", {GPU: 2})))
        await kubelet.admit(pod)
        assert [entry["ContainerName"] for entry in content(directory)["Data"]["PodDeviceEntries"]] == ["a"]


async def test_dead_pods_stay_in_the_checkpoint_until_its_next_write(kubelet, directory):
    pod, following = (
        Pod("p", (Container("i", {GPU: 1}, ContainerKind.INIT), Container("a", {GPU: 1}))),
        Pod.of("n", {GPU: 1}),
    )
    await kubelet.run(pod)
    await kubelet.delete(pod)
    names = [entry["ContainerName"] for entry in content(directory)["Data"]["PodDeviceEntries"]]
    assert names == ["i", "a"]
    await kubelet.admit(following)
    assert [entry["PodUID"] for entry in content(directory)["Data"]["PodDeviceEntries"]] == [following.uid]


@pytest.mark.parametrize(
    "text", ["", "null", '{"Data":{}}', '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}}}']
)
def test_half_a_file_is_corrupt(tmp_path, text):
    (tmp_path / checkpoint.NAME).write_text(text)
    with pytest.raises(checkpoint.CorruptCheckpoint):
        checkpoint.read(tmp_path)
