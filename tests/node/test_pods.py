"""What pods are called, by the directories that a kubelet makes for their logs."""

from __future__ import annotations

import json

import pytest

from scrubber.node import assignments, pods
from scrubber.node.assignments import AssignmentEntry
from scrubber.node.pods import Tenants

UID = "8d2f4b9e-0d3c-4a57-9f0a-6c1f6a0b7c11"
STATIC = "4d4b8d5f27b0b5a0c6c1a5ab1f0e9d3c"


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "pods").mkdir()
    return tmp_path / "pods"


@pytest.mark.parametrize(
    ("directory", "uid", "name"),
    [
        (f"default_train_{UID}", UID, "default/train"),
        (f"kube-system_nvidia-dcgm-exporter-x7k2p_{UID}", UID, "kube-system/nvidia-dcgm-exporter-x7k2p"),
        (f"a_job.v1-0.b_{UID}", UID, "a/job.v1-0.b"),
        (f"kube-system_etcd-node1_{STATIC}", STATIC, "kube-system/etcd-node1"),
        ("default_static_my_own_uid", "my_own_uid", "default/static"),
    ],
)
def test_a_pod_has_the_name_of_its_directory(logs, directory, uid, name):
    (logs / directory).mkdir()
    assert pods.read_names(logs) == {uid: name}


@pytest.mark.parametrize(
    "directory",
    [
        "lost+found", "default_train", f"_train_{UID}", f"default__{UID}", "default_train_", f"Default_train_{UID}",
        f"default_tr\nain_{UID}", f"default_-train_{UID}", f"default_train._{UID}", f"de.fault_train_{UID}",
        f"default\n_train_{UID}", f"\x1b[2J_train_{UID}",
    ],
)  # fmt: skip
def test_a_directory_of_another_form_names_no_pod(logs, directory):
    (logs / directory).mkdir()
    assert pods.read_names(logs) == {}


def test_only_a_directory_names_a_pod_and_only_once(logs, tmp_path):
    (logs / f"default_file_{UID}").touch()
    (logs / f"default_link_{UID}").symlink_to(tmp_path)
    for name in ("one", "two"):
        (logs / f"default_{name}_{UID}").mkdir()
    (logs / f"default_three_{STATIC}").mkdir()
    assert pods.read_names(logs) == {STATIC: "default/three"}


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (
            json.dumps({"Data": {"PodDeviceEntries": [{"PodUID": UID, "DeviceIDs": {"-1": ["GPU-0::1"]}}]}}),
            (AssignmentEntry("GPU-0", UID, ""),),
        ),
        ("{", ()),
        (None, ()),
    ],
    ids=["a checkpoint", "half a checkpoint", "no checkpoint"],
)
def test_pods_have_names_and_the_owners_in_the_checkpoint(logs, tmp_path, text, entries):
    (logs / f"default_train_{UID}").mkdir()
    if text is not None:
        (tmp_path / assignments.NAME).write_text(text)
    assert pods.look(tmp_path, logs) == Tenants(entries, {UID: "default/train"})


def test_the_pods_of_a_device_have_their_containers():
    named = [("GPU-0", "a", "init"), ("GPU-0", "a", "app"), ("GPU-0", "b", ""), ("GPU-1", "c", "app")]
    tenants = Tenants(tuple(AssignmentEntry(*one) for one in named))
    assert tenants.of("GPU-0") == {"a": {"init", "app"}, "b": frozenset()}
    assert tenants.of("GPU-2") == {}


@pytest.mark.parametrize("make", [None, "touch"], ids=["no directory", "a file"])
def test_without_the_directory_pods_have_no_names(logs, tmp_path, make):
    logs.rmdir()
    if make is not None:
        logs.touch()
    assert pods.look(tmp_path, logs) == Tenants()
