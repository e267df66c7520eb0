"""The stand-in as a context manager: nothing of it is left behind by a test that fails."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from plugin.testing.kubelet import Kubelet


async def failing(directory: Path) -> None:
    """What a test does whose assertion fails."""
    async with Kubelet(directory):
        assert not (directory / "kubelet.sock").is_socket()


async def test_a_block_that_fails_leaves_no_task_and_no_listener_behind():
    with tempfile.TemporaryDirectory(prefix="k-") as name:
        before, directory = asyncio.all_tasks(), Path(name)
        with pytest.raises(AssertionError):
            await failing(directory)
        assert asyncio.all_tasks() == before
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(directory / "kubelet.sock")
