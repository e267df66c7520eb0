"""A kubelet in a short directory, and as many do-nothing plugins as a test wants."""

import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from demo.standins.do_nothing_plugin import RESOURCE as GPU
from demo.standins.do_nothing_plugin import DoNothingPlugin
from demo.standins.kubelet import Kubelet
from plugin.kubelet_api import deviceplugin_pb2


@pytest.fixture
def directory():
    """Short: a unix socket's path has 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="k"))
    yield made
    shutil.rmtree(made)


def answering(**envs):
    """Allocate answers with these variables."""
    return lambda _: deviceplugin_pb2.ContainerAllocateResponse(envs=envs)


async def during(kubelet, method):
    """Wait until this call has begun."""
    await kubelet.until(lambda: kubelet.calls[-1].method == method and not kubelet.calls[-1].outcome)


class Node:
    """``async with node.kubelet(...) as kubelet`` runs a kubelet; plugins of ``node.plugin`` end with the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.plugins: list[DoNothingPlugin] = []

    @asynccontextmanager
    async def kubelet(self, **options):
        kubelet = Kubelet(self.directory, **options)
        await kubelet.start()
        try:
            yield kubelet
        finally:
            await kubelet.stop()

    @asynccontextmanager
    async def ready(self, *, offers=None, **options):
        """A kubelet with one registered plugin."""
        async with self.kubelet(**options) as kubelet:
            plugin = await self.plugin(**(offers or {})).begin()
            await kubelet.registered(GPU)
            yield kubelet, plugin

    def plugin(self, **options):
        self.plugins.append(DoNothingPlugin(self.directory, **{"answer": answering(ANSWER="yes"), **options}))
        return self.plugins[-1]


@pytest.fixture
async def node(directory):
    made = Node(directory)
    yield made
    for plugin in made.plugins:
        await plugin.stop()


@pytest.fixture
async def registered(node):
    """A kubelet with one registered plugin."""
    async with node.ready() as both:
        yield both


@pytest.fixture
def kubelet(registered):
    return registered[0]


@pytest.fixture
def plugin(registered):
    return registered[1]
