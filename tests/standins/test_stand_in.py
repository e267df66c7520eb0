"""The stand-in as a tool: it hides no fault of its own, leaves nothing behind, and makes the directories of logs."""

import asyncio

import pytest

from demo.standins.do_nothing_plugin import RESOURCE as GPU
from demo.standins.journal import StandInFault
from demo.standins.kubelet import Kubelet
from demo.standins.pods import Pod


class BrokenError(Exception):
    pass


async def test_a_fault_in_the_background_fails_the_next_call(directory, node, monkeypatch):
    def broken(*_) -> None:
        raise BrokenError("planted")

    kubelet = Kubelet(directory)
    await kubelet.start()
    assert kubelet._life is not None
    monkeypatch.setattr(kubelet._life.inventory, "replace", broken)
    await node.plugin().begin()
    for ask in (lambda: kubelet.registered(GPU), lambda: kubelet.admit(Pod.of("p", {})), kubelet.stop):
        with pytest.raises(StandInFault, match="planted") as caught:
            await ask()
        assert isinstance(caught.value.__cause__, BrokenError)


async def failing(directory) -> None:
    """What a test does whose assertion fails."""
    async with Kubelet(directory):
        assert not (directory / "kubelet.sock").is_socket()


async def test_a_failed_block_leaves_no_task_and_no_listener(directory):
    before = asyncio.all_tasks()
    with pytest.raises(AssertionError):
        await failing(directory)
    assert asyncio.all_tasks() == before
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_unix_connection(directory / "kubelet.sock")


async def test_a_pod_has_a_directory_from_start_to_deletion(directory, tmp_path):
    def named() -> list[str]:
        return [entry.name for entry in tmp_path.iterdir()]

    async with Kubelet(directory, logs=tmp_path) as kubelet:
        pod = Pod.of("p", {})
        await kubelet.admit(pod)
        assert named() == []
        await kubelet.sync(pod)
        await kubelet.restart_container(pod, "main")
        await kubelet.finish(pod)
        assert named() == [f"default_p_{pod.uid}"]
        await kubelet.delete(pod)
        assert named() == []
