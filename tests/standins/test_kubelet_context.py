"""Nothing is left behind: by a test that fails, or by a kubelet that dies while it ends a pod."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from demo.standins.kubelet import Kubelet
from demo.standins.pods import Phase, Pod, PodStatus
from demo.standins.runtime import Runtime


async def failing(directory: Path) -> None:
    """What a test does whose assertion fails."""
    async with Kubelet(directory):
        assert not (directory / "kubelet.sock").is_socket()


async def test_a_failed_block_leaves_no_task_and_no_listener():
    with tempfile.TemporaryDirectory(prefix="k-") as name:
        before, directory = asyncio.all_tasks(), Path(name)
        with pytest.raises(AssertionError):
            await failing(directory)
        assert asyncio.all_tasks() == before
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(directory / "kubelet.sock")


class Sandboxes(Runtime):
    """Remembers whose are open."""

    def __init__(self) -> None:
        self.opened: set[str] = set()

    async def open_sandbox(self, pod: Pod) -> None:
        self.opened.add(pod.uid)

    async def close_sandbox(self, pod: Pod) -> None:
        self.opened.discard(pod.uid)


async def test_after_a_restart_the_kubelet_ends_the_failed_pods():
    with tempfile.TemporaryDirectory(prefix="k-") as name:
        sandboxes = Sandboxes()
        async with Kubelet(Path(name), sandboxes) as kubelet:
            pod = Pod.of("pod", {})
            await kubelet.run(pod)
            assert sandboxes.opened == {pod.uid}
            await kubelet.kill()
            pod.status = PodStatus(Phase.FAILED)  # and dead before it could stop its containers
            await kubelet.start()
            assert sandboxes.opened == set()
