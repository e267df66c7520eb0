"""Who the kubelet says holds a device, from checkpoints as kubelets of several versions write them."""

from __future__ import annotations

import json
import os

import pytest

from scrubber.node import checkpoint

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


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_names_the_pods(tmp_path, layout):
    write(tmp_path, layout)
    pods = {"GPU-0": frozenset({"uid-a"}), "GPU-1": frozenset({"uid-a"}), "MIG-2": frozenset({"uid-b"})}
    assert checkpoint.owners(tmp_path) == pods


def test_r8_a_device_of_two_pods_names_both_whatever_resource_it_is_told_under(tmp_path):
    entry = {"ContainerName": "app", "DeviceIDs": {"-1": ["GPU-0"]}}
    both = [{**entry, "PodUID": "a", "ResourceName": "x.y/z"}, {**entry, "PodUID": "b", "ResourceName": "p.q/r"}]
    write(tmp_path, {"PodDeviceEntries": both})
    assert checkpoint.owners(tmp_path) == {"GPU-0": frozenset({"a", "b"})}


@pytest.mark.parametrize("entries", [None, []])
def test_a_kubelet_that_gave_nothing_away_names_nobody(tmp_path, entries):
    write(tmp_path, {"PodDeviceEntries": entries})
    assert checkpoint.owners(tmp_path) == {}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "{}", '{"Data": null}', '{"Data": {}}', '{"Data": {"PodDeviceEntries": {"a": 1}}}',
        '{"Data": {"PodDeviceEntries": [{}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": "", "DeviceIDs": {}}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": 7, "DeviceIDs": {}}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": "a", "DeviceIDs": "GPU-0"}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": "a", "DeviceIDs": {"-1": "GPU-0"}}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": "a", "DeviceIDs": {"-1": [7]}}]}}',
        '{"Data": ' + "[" * 100_000, "\xff",
    ],
)  # fmt: skip
def test_w3_what_is_not_a_checkpoint_is_no_answer(tmp_path, text):
    (tmp_path / checkpoint.NAME).write_text(text, encoding="latin-1")
    with pytest.raises(checkpoint.CheckpointError, match="not laid out as a checkpoint"):
        checkpoint.owners(tmp_path)


def test_no_checkpoint_is_no_answer(tmp_path):
    with pytest.raises(checkpoint.CheckpointError, match="No such file"):
        checkpoint.owners(tmp_path)


def test_a_checkpoint_without_an_end_is_no_answer(tmp_path):
    (tmp_path / checkpoint.NAME).touch()
    os.truncate(tmp_path / checkpoint.NAME, checkpoint.LARGEST + 1)
    with pytest.raises(checkpoint.CheckpointError, match="larger than"):
        checkpoint.owners(tmp_path)


def test_a_checkpoint_that_was_replaced_is_read_anew(tmp_path):
    write(tmp_path, LAYOUTS["1.28 to 1.36"])
    checkpoint.owners(tmp_path)
    fresh = tmp_path / "fresh"
    fresh.write_text(json.dumps({"Data": {"PodDeviceEntries": []}}))
    fresh.replace(tmp_path / checkpoint.NAME)
    assert checkpoint.owners(tmp_path) == {}
