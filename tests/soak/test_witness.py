"""The witness of the soak would see it: each of its checks is shown what it is there for."""

from __future__ import annotations

import pytest

from demo.handout import RESOURCE
from demo.standins.pods import Pod
from plugin.kubelet_api import deviceplugin_pb2
from tests.soak.conftest import witness

pytestmark = pytest.mark.night


@pytest.fixture
async def node(build):
    return await build(1)


async def test_a_start_that_nobody_asked_for_is_seen(node):
    seen, stranger = witness(node.stage), Pod.of("stranger", {RESOURCE: 1})
    await seen.start(stranger, stranger.containers[0], {RESOURCE: node.stage.uuids}, answer())
    await seen.stop(stranger, stranger.containers[0])
    assert len([it for it in seen.faults if "its last proof does not stand" in it or "by the ledger" in it]) == 2
    seen.faults.clear()


async def test_a_start_beside_another_pod_s_container_is_seen(node):
    seen, stranger = witness(node.stage), Pod.of("stranger", {RESOURCE: 1})
    await node.kubelet.force_delete(await node.run("first"))
    await seen.start(stranger, stranger.containers[0], {RESOURCE: node.stage.uuids}, answer())
    assert any("is on it" in it for it in seen.faults)
    assert any("by the ledger it is" in it for it in seen.faults)
    assert any("finds b" in it for it in seen.faults)
    seen.faults.clear()


async def test_memory_that_is_overwritten_in_use_is_seen(node):
    first = await node.run("first")
    memory = node.stage.memory_of(0)
    memory.write_bytes(bytes(memory.stat().st_size))
    await node.kubelet.exit_container(first, "main")
    assert "was overwritten under main" in witness(node.stage).faults.pop()


async def test_a_container_that_is_killed_is_seen(node):
    first = await node.run("first")
    [process] = node.stage.containers._running[first.uid, "main"]
    process.kill()
    await process.wait()
    await node.kubelet.exit_container(first, "main")
    assert "main of first was killed" in witness(node.stage).faults.pop()


def answer() -> deviceplugin_pb2.ContainerAllocateResponse:
    """The witness does not look at it."""
    return deviceplugin_pb2.ContainerAllocateResponse()
