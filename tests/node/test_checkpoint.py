"""Who the kubelet says holds a device, from checkpoints as kubelets of several versions write them."""

from __future__ import annotations

import json
import os

import pytest

from scrubber.node import checkpoint
from scrubber.node.checkpoint import CheckpointEntry

UID_A, UID_B = "8d2f4b9e-0d3c-4a57-9f0a-6c1f6a0b7c11", "0f8fad5b-d9cb-469f-a165-70867728950e"
STATIC = "4d4b8d5f27b0b5a0c6c1a5ab1f0e9d3c"  # a static pod's UID is a digest
GPU = "GPU-5e2f1c77-8a34-4cbb-9b0f-1d2a3b4c5d6e"
MIG = "MIG-41b35c2e-6f0a-5d7b-8a3d-9c1e2f304152"


def held(pod, container, nodes, resource="nvidia.com/gpu", answer='"GiwKGW52aWRpYS5jb20vZ3B1PTA="'):
    """An entry as Go writes it: the plugin's answer in base64."""
    return (
        f'{{"PodUID":"{pod}","ContainerName":"{container}","ResourceName":"{resource}",'
        f'"DeviceIDs":{json.dumps(nodes, separators=(",", ":"))},"AllocResp":{answer}}}'
    )


def written(*entries, registered='{"nvidia.com/gpu":["GPU-0"]}'):
    """A file as kubelets 1.28 to 1.36 write it: what differs is the node, not the version."""
    return f'{{"Data":{{"PodDeviceEntries":[{",".join(entries)}],"RegisteredDevices":{registered}}},"Checksum":27}}'


TEXTS = {
    "a node without NUMA": (written(held(UID_A, "main", {"-1": [GPU]})), {CheckpointEntry(GPU, UID_A, "main")}),
    "a device of two NUMA nodes": (
        written(held(UID_A, "main", {"0": [GPU], "1": [GPU]}, answer='""')),
        {CheckpointEntry(GPU, UID_A, "main")},
    ),
    "init, sidecar and app of one pod": (
        written(*(held(UID_A, name, {"1": [GPU]}, answer="null") for name in ("a", "b", "c")), registered="null"),
        {CheckpointEntry(GPU, UID_A, "a"), CheckpointEntry(GPU, UID_A, "b"), CheckpointEntry(GPU, UID_A, "c")},
    ),
    "a shared GPU": (
        written(
            held(UID_A, "a", {"0": [f"{GPU}::0", f"{GPU}::3"]}, "nvidia.com/gpu.shared"),
            held(UID_B, "b", {"0": [f"{GPU}::11"]}, "nvidia.com/gpu.shared"),
        ),
        {CheckpointEntry(GPU, UID_A, "a"), CheckpointEntry(GPU, UID_B, "b")},
    ),
    "MIG slices, shared and whole, one of a static pod": (
        written(
            held(STATIC, "a", {"-1": [f"{MIG}::2"]}, "nvidia.com/mig-1g.10gb"),
            held(UID_B, "b", {"-1": [f"MIG-{GPU}/1/2"]}, "nvidia.com/mig-1g.10gb"),
        ),
        {CheckpointEntry(MIG, STATIC, "a"), CheckpointEntry(f"MIG-{GPU}/1/2", UID_B, "b")},
    ),
}

# By kubelet version: the layout of ``Data``, with one device each of two pods and a pod that has two containers.
LAYOUTS = {
    "1.28 to 1.36": {
        "PodDeviceEntries": [
            {"PodUID": "uid-a", "ContainerName": "init", "ResourceName": "nvidia.com/gpu",
             "DeviceIDs": {"-1": ["GPU-0"]}, "AllocResp": "CgA="},
            {"PodUID": "uid-a", "ContainerName": "app", "ResourceName": "nvidia.com/gpu",
             "DeviceIDs": {"0": ["GPU-0"], "1": ["GPU-1"]}, "AllocResp": ""},
            {"PodUID": "uid-b", "ContainerName": "app", "ResourceName": "nvidia.com/mig-1g.10gb",
             "DeviceIDs": {"-1": ["MIG-2"]}, "AllocResp": ""},
        ],
        "RegisteredDevices": {"nvidia.com/gpu": ["GPU-0", "GPU-1"]},
    },
    "1.19 and before": {
        "PodDeviceEntries": [
            {"PodUID": "uid-a", "ContainerName": "app", "ResourceName": "nvidia.com/gpu",
             "DeviceIDs": ["GPU-0", "GPU-1"], "AllocResp": ""},
            {"PodUID": "uid-b", "ContainerName": "app", "ResourceName": "nvidia.com/mig-1g.10gb",
             "DeviceIDs": ["MIG-2"], "AllocResp": ""},
        ],
        "RegisteredDevices": {},
    },
    "entries with nothing in them": {
        "PodDeviceEntries": [
            {"PodUID": "uid-a", "ContainerName": "app", "ResourceName": "nvidia.com/gpu",
             "DeviceIDs": {"0": None, "1": ["GPU-0", "GPU-1"]}, "AllocResp": None},
            {"PodUID": "uid-b", "ContainerName": "app", "ResourceName": "a.b/c", "DeviceIDs": {"-1": ["MIG-2"]}},
            {"PodUID": "uid-c", "ContainerName": "app", "ResourceName": "a.b/c", "DeviceIDs": None},
        ],
        "RegisteredDevices": None,
    },
}  # fmt: skip


def write(directory, data):
    (directory / checkpoint.NAME).write_text(json.dumps({"Data": data, "Checksum": 1}))


def counted(directory):
    """The pods of each device, and how many containers they have on it."""
    return {device: (it.pods, it.containers) for device, it in checkpoint.assignments(directory).items()}


def test_an_assignment_has_its_time(tmp_path):
    write(tmp_path, LAYOUTS["1.28 to 1.36"])
    os.utime(tmp_path / checkpoint.NAME, (1.0, 1_750_000_000.25))
    assert {it.written for it in checkpoint.assignments(tmp_path).values()} == {1_750_000_000.25}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_names_the_pods(tmp_path, layout):
    write(tmp_path, layout)
    pods = {"GPU-0": frozenset({"uid-a"}), "GPU-1": frozenset({"uid-a"}), "MIG-2": frozenset({"uid-b"})}
    assert {device: found for device, (found, _) in counted(tmp_path).items()} == pods


def test_r8_both_pods_of_a_device_are_named(tmp_path):
    entry = {"ContainerName": "app", "DeviceIDs": {"-1": ["GPU-0"]}}
    both = [{**entry, "PodUID": "a", "ResourceName": "x.y/z"}, {**entry, "PodUID": "b", "ResourceName": "p.q/r"}]
    write(tmp_path, {"PodDeviceEntries": both})
    assert counted(tmp_path) == {"GPU-0": (frozenset({"a", "b"}), 2)}


def test_each_container_of_a_pod_is_counted_once(tmp_path):
    entry = {"PodUID": "a", "ResourceName": "x.y/z", "DeviceIDs": {"-1": ["GPU-0"]}}
    named = [{**entry, "ContainerName": name} for name in ("init", "app", "app")]
    write(tmp_path, {"PodDeviceEntries": named})
    assert counted(tmp_path) == {"GPU-0": (frozenset({"a"}), 2)}


@pytest.mark.parametrize(("text", "entries"), TEXTS.values(), ids=TEXTS)
def test_every_node_names_devices_pods_and_containers_each_once(tmp_path, text, entries):
    (tmp_path / checkpoint.NAME).write_text(text)
    found = checkpoint.entries(tmp_path)
    assert found == checkpoint.parse(text.encode())
    assert (set(found), len(found)) == (entries, len(entries))


def test_a_part_of_a_shared_device_counts_for_the_whole(tmp_path):
    (tmp_path / checkpoint.NAME).write_text(TEXTS["a shared GPU"][0])
    assert counted(tmp_path) == {GPU: (frozenset({UID_A, UID_B}), 2)}


@pytest.mark.parametrize("device", ["GPU-0::", "GPU-0::x", "::3", "GPU-0::3\n", "GPU-0:3", "GPU-0::3/1", "GPU-0::٣"])
def test_only_a_number_at_the_end_makes_a_part(tmp_path, device):
    write(tmp_path, {"PodDeviceEntries": [{"PodUID": "a", "ContainerName": "c", "DeviceIDs": {"-1": [device]}}]})
    assert checkpoint.entries(tmp_path) == (CheckpointEntry(device, "a", "c"),)


@pytest.mark.parametrize("checksum", [0, 2**64 - 1, None, "none"])
def test_the_checksum_is_left_alone(tmp_path, checksum):
    data = json.loads(TEXTS["a node without NUMA"][0])
    (tmp_path / checkpoint.NAME).write_text(json.dumps({**data, "Checksum": checksum}))
    assert counted(tmp_path) == {GPU: (frozenset({UID_A}), 1)}


@pytest.mark.parametrize("text", [text for text, _ in TEXTS.values()], ids=TEXTS)
def test_w3_a_truncated_checkpoint_is_no_answer(text):
    for end in range(len(text)):
        with pytest.raises(checkpoint.CheckpointError):
            checkpoint.parse(text[:end].encode())


def test_a_container_may_have_no_name(tmp_path):
    write(tmp_path, {"PodDeviceEntries": [{"PodUID": "a", "DeviceIDs": {"-1": ["GPU-0"]}}]})
    assert checkpoint.entries(tmp_path) == (CheckpointEntry("GPU-0", "a", ""),)


@pytest.mark.parametrize("entries", [None, []])
def test_an_empty_checkpoint_names_no_pods(tmp_path, entries):
    write(tmp_path, {"PodDeviceEntries": entries})
    assert checkpoint.assignments(tmp_path) == {}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "{}", '{"Data": null}', '{"Data": {}}', '{"Data": {"PodDeviceEntries": {"a": 1}}}',
        '{"Data": {"PodDeviceEntries": [{}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": "", "DeviceIDs": {}}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": 7, "DeviceIDs": {}}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": "a", "ContainerName": 7, "DeviceIDs": {"-1": ["GPU-0"]}}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": "a", "ContainerName": null, "DeviceIDs": {"-1": ["GPU-0"]}}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": "a", "DeviceIDs": "GPU-0"}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": "a", "DeviceIDs": {"-1": "GPU-0"}}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": "a", "DeviceIDs": {"-1": [7]}}]}}',
        '{"Data": ' + "[" * 100_000, "\xff",
    ],
)  # fmt: skip
def test_w3_what_is_not_a_checkpoint_is_no_answer(tmp_path, text):
    (tmp_path / checkpoint.NAME).write_text(text, encoding="latin-1")
    with pytest.raises(checkpoint.CheckpointError, match="format of a checkpoint"):
        checkpoint.assignments(tmp_path)


def test_without_a_checkpoint_the_assignments_are_unknown(tmp_path):
    with pytest.raises(checkpoint.CheckpointError, match="No such file"):
        checkpoint.assignments(tmp_path)


def test_a_checkpoint_that_is_cut_off_is_not_used(tmp_path):
    (tmp_path / checkpoint.NAME).touch()
    os.truncate(tmp_path / checkpoint.NAME, checkpoint.LARGEST + 1)
    with pytest.raises(checkpoint.CheckpointError, match="larger than"):
        checkpoint.assignments(tmp_path)


def test_a_replaced_checkpoint_is_read_again(tmp_path):
    write(tmp_path, LAYOUTS["1.28 to 1.36"])
    checkpoint.assignments(tmp_path)
    fresh = tmp_path / "fresh"
    fresh.write_text(json.dumps({"Data": {"PodDeviceEntries": []}}))
    fresh.replace(tmp_path / checkpoint.NAME)
    assert checkpoint.assignments(tmp_path) == {}


def test_a_checkpoint_that_says_the_same_is_parsed_once(tmp_path):
    """It is asked for device after device; the answer is that of what is read, so that no change is missed."""
    text = written(held(UID_A, "main", {"-1": [GPU]}))
    (tmp_path / checkpoint.NAME).write_text(text)
    first = checkpoint.entries(tmp_path)
    assert checkpoint.entries(tmp_path) is first
    (tmp_path / checkpoint.NAME).write_text(text.replace(UID_A, UID_B))
    assert {entry.pod for entry in checkpoint.entries(tmp_path)} == {UID_B}
