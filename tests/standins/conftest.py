"""A kubelet in a short directory, and as many little plugins as a test wants."""

import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from demo.standins.kubelet import Kubelet
from tests.standins.little import GPU, Little


@pytest.fixture
def directory():
    """Short: a unix socket's path has 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="k"))
    yield made
    shutil.rmtree(made)


class Node:
    """``async with node.kubelet(...) as kubelet`` runs a kubelet; plugins of ``node.plugin`` end with the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.plugins: list[Little] = []

    @asynccontextmanager
    async def kubelet(self, **options):
        kubelet = Kubelet(self.directory, **options)
        await kubelet.start()
        try:
            yield kubelet
        finally:
            await kubelet.stop()

    @asynccontextmanager
    async def ready(self, *, little=None, **options):
        """A kubelet with one registered plugin."""
        async with self.kubelet(**options) as kubelet:
            plugin = await self.plugin(**(little or {})).begin()
            await kubelet.registered(GPU)
            yield kubelet, plugin

    def plugin(self, **options):
        self.plugins.append(Little(self.directory, **options))
        return self.plugins[-1]


@pytest.fixture
async def node(directory):
    made = Node(directory)
    yield made
    for plugin in made.plugins:
        await plugin.stop()
