"""The directories for the logs of pods. Ids: docs/kubelet-stand-in.md."""

from __future__ import annotations

import pytest

from demo.standins.kubelet import Kubelet
from demo.standins.pods import Pod


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "pods"


def named(logs):
    return sorted(entry.name for entry in logs.iterdir()) if logs.is_dir() else []


async def test_a_pod_has_a_directory_from_start_to_deletion(directory, logs):
    async with Kubelet(directory, logs=logs) as kubelet:
        pod = Pod.of("p", {})
        await kubelet.admit(pod)
        assert named(logs) == []
        await kubelet.sync(pod)
        await kubelet.restart_container(pod, "main")
        assert named(logs) == [f"default_p_{pod.uid}"]
        await kubelet.finish(pod)
        assert named(logs) == [f"default_p_{pod.uid}"]
        await kubelet.delete(pod)
        assert named(logs) == []


async def test_a_force_deleted_pod_keeps_its_directory_until_its_end(directory, logs):
    async with Kubelet(directory, logs=logs) as kubelet:
        pod = Pod.of("p", {})
        await kubelet.run(pod)
        await kubelet.force_delete(pod)
        assert named(logs) == [f"default_p_{pod.uid}"]
        await kubelet.end_orphan(pod)
        assert named(logs) == []


async def test_a_pod_that_never_started_is_deleted_like_any_other(directory, logs):
    async with Kubelet(directory, logs=logs) as kubelet:
        pod = Pod.of("p", {})
        await kubelet.admit(pod)
        await kubelet.delete(pod)
        assert named(logs) == []
