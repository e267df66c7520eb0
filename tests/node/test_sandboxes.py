"""Who a pod is, by what its container runtime keeps of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scrubber.node.pods import PodNames
from scrubber.node.sandboxes import Sandboxes

UID = "8d2f4b9e-0d3c-4a57-9f0a-6c1f6a0b7c11"
OTHER = "1d2f4b9e-0d3c-4a57-9f0a-6c1f6a0b7c11"
ID, OF_CONTAINER = "a1" * 32, "b2" * 32
SLICE = f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice"
BEST_EFFORT = f"/kubepods.slice/kubepods-besteffort.slice/{SLICE}"
CONTAINERD = "run/containerd/io.containerd.runtime.v2.task/k8s.io/{}/config.json"
CRI_O = "run/containers/storage/overlay-containers/{}/userdata/config.json"


def of_containerd(kind: str = "sandbox", namespace: str = "team") -> dict[str, str]:
    """What containerd writes about a pod's sandbox, or about one of its containers."""
    said = {"container-type": kind, "sandbox-id": ID, "sandbox-namespace": namespace, "sandbox-name": "train"}
    return {f"io.kubernetes.cri.{name}": value for name, value in said.items()}


def of_cri_o(identity: str = ID) -> dict[str, str]:
    """What CRI-O writes about a pod's sandbox, with annotations that the pod chose."""
    said = {"io.kubernetes.pod.namespace": "team", "io.kubernetes.pod.name": "train"}
    return {"io.kubernetes.cri-o.SandboxID": identity, **of_containerd(namespace="gpu-operator"), **said}


def start(root: Path, place: str, annotations: dict[str, str], path: str, identity: str = ID) -> None:
    """Write what a runtime writes before it starts a container."""
    file = root / place.format(identity)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"annotations": annotations, "linux": {"cgroupsPath": path}}))


@pytest.mark.parametrize(
    ("place", "annotations", "path", "group"),
    [
        (CONTAINERD, of_containerd(), f"{SLICE}:cri-containerd:{ID}", BEST_EFFORT),
        (CONTAINERD, of_containerd(), f"/kubelet/kubepods/pod{UID}/{ID}", f"/kubelet/kubepods/pod{UID}"),
        (CONTAINERD.replace("run/", "run/k3s/"), of_containerd(), f"/kubepods/pod{UID}/{ID}", f"/kubepods/pod{UID}"),
        (CRI_O, of_cri_o(), f"{SLICE}:crio:{ID}", BEST_EFFORT),
        (CRI_O, of_cri_o(), f"/kubepods/burstable/pod{UID}/crio-{ID}", f"/kubepods/burstable/pod{UID}"),
    ],
)  # fmt: skip
def test_the_runtime_names_a_pod_and_its_group(
    tmp_path: Path, place: str, annotations: dict[str, str], path: str, group: str
) -> None:
    start(tmp_path, place, annotations, path)
    pods = Sandboxes(tmp_path).read()
    assert pods == {UID: (UID, "team/train", group)}
    assert Sandboxes(tmp_path).group(UID) == group
    assert Sandboxes(tmp_path).group(OTHER) == "", "no pod of this runtime"


def test_a_container_names_no_pod(tmp_path: Path) -> None:
    """The annotations of a container are also those that its pod chose."""
    path = f"/kubepods/pod{OTHER}/{OF_CONTAINER}"
    start(tmp_path, CONTAINERD, of_containerd("container", "gpu-operator"), path, OF_CONTAINER)
    start(tmp_path, CRI_O, of_cri_o(ID) | {"io.kubernetes.pod.namespace": "gpu-operator"}, path, OF_CONTAINER)
    start(tmp_path, CRI_O, of_cri_o(), f"/kubepods/pod{UID}/{ID}")
    assert list(Sandboxes(tmp_path).read() or ()) == [UID]


def test_a_sandbox_is_read_once_its_file_is_there(tmp_path: Path) -> None:
    sandboxes = Sandboxes(tmp_path)
    assert sandboxes.read() is None, "no runtime"
    assert sandboxes.group(UID) is None
    (tmp_path / CONTAINERD.format(ID)).parent.mkdir(parents=True)
    assert sandboxes.read() is None, "perhaps podman has made this directory"
    (tmp_path / CONTAINERD.format(ID)).write_text('{"annotations": {')
    assert sandboxes.read() is None, "the runtime is writing it"
    (tmp_path / CONTAINERD.format(ID)).unlink()
    (tmp_path / CONTAINERD.format(ID)).parent.rmdir()
    start(tmp_path, CONTAINERD, of_containerd(), f"/kubepods/pod{UID}/{ID}")
    (tmp_path / CONTAINERD.format("0")).parent.mkdir()
    (tmp_path / CONTAINERD.format("0")).write_text("[]")
    assert list(sandboxes.read() or ()) == [UID]
    (tmp_path / CONTAINERD.format(ID)).unlink()
    (tmp_path / CONTAINERD.format(ID)).parent.rmdir()
    assert sandboxes.read() is None, "a pod that has ended"


def test_a_renamed_log_directory_changes_no_namespace(tmp_path: Path) -> None:
    logs = tmp_path / "pods"
    (logs / f"gpu-operator_x_{UID}").mkdir(parents=True)
    (logs / f"gpu-operator_x_{OTHER}").mkdir()
    start(tmp_path, CONTAINERD, of_containerd(), f"/kubepods/pod{UID}/{ID}")
    names = PodNames(Sandboxes(tmp_path), logs)
    assert names.read() == {UID: "team/train"}
    assert list(names.renamed) == [UID]


@pytest.mark.parametrize("hierarchy", ["", "pids/"], ids=["version 2", "version 1"])
def test_another_group_with_its_uid_gives_no_name(tmp_path: Path, hierarchy: str) -> None:
    start(tmp_path, CONTAINERD, of_containerd(namespace="gpu-operator"), f"/kubepods/pod{UID}/{ID}")
    names = PodNames(Sandboxes(tmp_path), tmp_path / "pods")
    for place, pid in ((f"pod{UID}/{OF_CONTAINER}", 7), (f"burstable/pod{UID}/{OF_CONTAINER}", 8)):
        (group := tmp_path / f"sys/fs/cgroup/{hierarchy}kubepods" / place).mkdir(parents=True)
        (group / "cgroup.procs").write_text(f"1\n{pid}\n")
    assert (names.of(UID, 7), names.of(UID, 8)) == ("gpu-operator/train", None)
    assert names.of(OTHER, 7) is None


def test_without_a_runtime_a_renamed_pod_has_no_name(tmp_path: Path) -> None:
    logs = tmp_path / "pods"
    (logs / f"team_train_{UID}").mkdir(parents=True)
    (logs / f"team_other_{OTHER}").mkdir()
    names = PodNames(Sandboxes(tmp_path), logs)
    assert names.read() == {UID: "team/train", OTHER: "team/other"}
    (logs / f"team_train_{UID}").rename(logs / f"gpu-operator_x_{UID}")
    for _ in range(2):
        assert (names.read(), [*names.renamed]) == ({OTHER: "team/other"}, [UID])
    (logs / f"gpu-operator_x_{UID}").rename(logs / f"team_train_{UID}")
    assert names.read() == {OTHER: "team/other", UID: "team/train"}
