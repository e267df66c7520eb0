"""Who the kubelet says holds a device, from checkpoints as kubelets of several versions write them."""

from __future__ import annotations

import json
import os

import pytest

from scrubber.core.model import KubeletAssignment
from scrubber.node import assignments
from scrubber.node.assignments import AssignmentEntry

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
    """A file as kubelets 1.28 to 1.37 write it: what differs is the node, not the version."""
    return f'{{"Data":{{"PodDeviceEntries":[{",".join(entries)}],"RegisteredDevices":{registered}}},"Checksum":27}}'


TEXTS = {
    "a node without NUMA": (written(held(UID_A, "main", {"-1": [GPU]})), {AssignmentEntry(GPU, UID_A, "main")}),
    "no entries": (written(), set()),
    "null entries": ('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":0}', set()),
    "entries with nothing in them": (
        written(held(UID_A, "a", {"0": None, "1": [GPU]}, answer="null"), held(UID_B, "b", None)),
        {AssignmentEntry(GPU, UID_A, "a")},
    ),
    "a container without a name": (
        written(f'{{"PodUID":"{UID_A}","DeviceIDs":{{"-1":["{GPU}"]}}}}'),
        {AssignmentEntry(GPU, UID_A, "")},
    ),
    "a device of two NUMA nodes": (
        written(held(UID_A, "main", {"0": [GPU], "1": [GPU]}, answer='""')),
        {AssignmentEntry(GPU, UID_A, "main")},
    ),
    "init, sidecar and app of one pod": (
        written(*(held(UID_A, name, {"1": [GPU]}, answer="null") for name in ("a", "b", "c")), registered="null"),
        {AssignmentEntry(GPU, UID_A, "a"), AssignmentEntry(GPU, UID_A, "b"), AssignmentEntry(GPU, UID_A, "c")},
    ),
    "a shared GPU": (
        written(
            held(UID_A, "a", {"0": [f"{GPU}::0", f"{GPU}::3"]}, "nvidia.com/gpu.shared"),
            held(UID_B, "b", {"0": [f"{GPU}::11"]}, "nvidia.com/gpu.shared"),
        ),
        {AssignmentEntry(GPU, UID_A, "a"), AssignmentEntry(GPU, UID_B, "b")},
    ),
    "MIG slices, shared and whole, one of a static pod": (
        written(
            held(STATIC, "a", {"-1": [f"{MIG}::2"]}, "nvidia.com/mig-1g.10gb"),
            held(UID_B, "b", {"-1": [f"MIG-{GPU}/1/2"]}, "nvidia.com/mig-1g.10gb"),
        ),
        {AssignmentEntry(MIG, STATIC, "a"), AssignmentEntry(f"MIG-{GPU}/1/2", UID_B, "b")},
    ),
}


def write(directory, data):
    (directory / assignments.NAME).write_text(json.dumps({"Data": data, "Checksum": 1}))


def test_r8_pods_and_containers_of_a_device_are_counted_once(tmp_path):
    entries = [held(UID_A, name, {"-1": [f"{GPU}::{number}"]}) for number, name in enumerate(("init", "app", "app"))]
    (tmp_path / assignments.NAME).write_text(written(*entries, held(UID_B, "app", {"-1": [GPU]}, "p.q/r")))
    os.utime(tmp_path / assignments.NAME, (1.0, 1_750_000_000.25))
    assert assignments.by_device(tmp_path) == {GPU: KubeletAssignment(frozenset({UID_A, UID_B}), 3, 1_750_000_000.25)}


@pytest.mark.parametrize(("text", "entries"), TEXTS.values(), ids=TEXTS)
def test_every_node_names_devices_pods_and_containers_each_once(tmp_path, text, entries):
    (tmp_path / assignments.NAME).write_text(text)
    found = assignments.entries(tmp_path)
    assert found == assignments.parse(text.encode())
    assert (set(found), len(found)) == (entries, len(entries))


@pytest.mark.parametrize("device", ["GPU-0::", "GPU-0::x", "::3", "GPU-0::3\n", "GPU-0:3", "GPU-0::3/1", "GPU-0::٣"])
def test_only_a_number_at_the_end_makes_a_part(tmp_path, device):
    write(tmp_path, {"PodDeviceEntries": [{"PodUID": "a", "ContainerName": "c", "DeviceIDs": {"-1": [device]}}]})
    assert assignments.entries(tmp_path) == (AssignmentEntry(device, "a", "c"),)


@pytest.mark.parametrize("text", [text for text, _ in TEXTS.values()], ids=TEXTS)
def test_w3_a_truncated_checkpoint_is_no_answer(text):
    for end in range(len(text)):
        with pytest.raises(assignments.AssignmentsError):
            assignments.parse(text[:end].encode())


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
        '{"Data": {"PodDeviceEntries": [{"PodUID": "a", "DeviceIDs": ["GPU-0"]}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": "a", "DeviceIDs": {"-1": "GPU-0"}}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": "a", "DeviceIDs": {"-1": [7]}}]}}',
        '{"Data": ' + "[" * 100_000, "\xff",
    ],
)  # fmt: skip
def test_w3_what_is_not_a_checkpoint_is_no_answer(tmp_path, text):
    (tmp_path / assignments.NAME).write_text(text, encoding="latin-1")
    with pytest.raises(assignments.AssignmentsError, match="format of a checkpoint"):
        assignments.by_device(tmp_path)


@pytest.mark.parametrize(("size", "why"), [(None, "No such file"), (assignments.LARGEST + 1, "larger than")])
def test_a_missing_or_huge_checkpoint_is_no_answer(tmp_path, size, why):
    if size is not None:
        (tmp_path / assignments.NAME).touch()
        os.truncate(tmp_path / assignments.NAME, size)
    with pytest.raises(assignments.AssignmentsError, match=why):
        assignments.by_device(tmp_path)


def test_a_checkpoint_that_says_the_same_is_parsed_once(tmp_path):
    """It is asked for device after device; the answer is that of what is read, so that no change is missed."""
    text = written(held(UID_A, "main", {"-1": [GPU]}))
    (tmp_path / assignments.NAME).write_text(text)
    first = assignments.entries(tmp_path)
    assert assignments.entries(tmp_path) is first
    (tmp_path / assignments.NAME).write_text(text.replace(UID_A, UID_B))
    assert {entry.pod for entry in assignments.entries(tmp_path)} == {UID_B}
