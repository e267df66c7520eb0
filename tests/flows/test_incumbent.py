"""What the vendor's device plugin was seen to do wrong on the bench, done right, from the driver to the kubelet.

Of what was seen there, a sickness that marks one of many ids of a GPU has no counterpart: here a GPU has one id. That
all of several GPUs that fall sick together are marked is tested. That PreStartContainer is no empty gesture is what all
of ``test_wipes`` and ``test_skips`` is about, too.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from demo.installation import RESOURCE
from demo.standins.pods import Phase
from plugin.kubelet_api import deviceplugin_pb2 as wire
from scrubber.devices.simulated import drills, layout
from tests.flows.node import Node, brisk

FATAL = 79
WINDOW = 1.5  # seconds over which messages and log lines are counted
MOST_LISTS, MOST_LINES = 3, 20  # in that time; the plugin that was seen sent 21,000 lists


async def test_an_unhealthy_gpu_is_neither_handed_out_nor_preferred(node):
    bad, good = node.stage.uuids
    await fall_sick(node, bad)
    async with node.door() as plugin:
        for ids in ([bad], [good, bad]):
            with pytest.raises(grpc.aio.AioRpcError, match="quarantined") as refused:
                await plugin.Allocate(allocating(ids))
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert (await node.status(good)).state == "clean", "what was asked for together is refused together"
    async with node.door() as plugin:
        answer = await plugin.GetPreferredAllocation(
            wire.PreferredAllocationRequest(
                container_requests=[
                    wire.ContainerPreferredAllocationRequest(available_deviceIDs=[bad, good], allocation_size=1)
                ]
            )
        )
    assert [list(each.deviceIDs) for each in answer.container_responses] == [[good]]


async def test_x11_a_container_keeps_its_sick_gpu_until_it_ends(node):
    pod = await node.run("train")
    uuid, left = node.gpu(pod), node.memory(node.gpu(pod))
    await fall_sick(node, uuid)
    assert ((await node.status(uuid)).state, node.memory(uuid)) == ("in_use", left)
    assert (await node.kubelet.restart_container(pod, "main")).starts == 1
    assert "it is unhealthy" in node.waiting(pod)
    await node.kubelet.delete(pod)
    await node.reach(uuid, lambda device: device.state == "quarantined")


async def hang_up(node):
    """SIGHUP to the plugin and, with another policy, to the service."""
    os.kill(node.stage.plugin.pid, signal.SIGHUP)
    await node.said(node.stage.plugin, "SIGHUP is ignored")
    node.rule(brisk())
    os.kill(node.stage.service.pid, signal.SIGHUP)
    await node.said(node.stage.service, "policy loaded")


async def test_no_restart_and_no_signal_makes_an_unhealthy_gpu_healthy(build):
    node = await build(2)
    bad, good = node.stage.uuids
    await fall_sick(node, bad)
    words: set[str | None] = set()
    believed = node.kubelet.until(lambda: words.add(node.kubelet.devices(RESOURCE).get(bad)), within=None)
    async with meanwhile(believed):  # looked at after each change
        for event in (hang_up, Node.restart_kubelet, Node.restart_plugin, Node.restart_service):
            await event(node)
            await node.reach(good, lambda device: device.healthy)
            await node.health(good, "Healthy")
            assert node.kubelet.devices(RESOURCE)[bad] == "Unhealthy"
    assert words <= {"Unhealthy", None}, "None while a new kubelet has no list yet"
    assert (await node.status(bad)).state == "quarantined"
    assert (await node.kubelet.run(node.pod("both", gpus=2))).phase is Phase.FAILED


@pytest.mark.parametrize("fault", ["unreadable", "xids"])
async def test_a_driver_that_fails_or_floods_takes_out_one_gpu(node, fault):
    bad, good = node.stage.uuids
    events = layout.find(node.stage.simulated, bad).events
    events.write_text("nonsense\n" if fault == "unreadable" else f"{FATAL}\n" * 5000)
    await node.health(bad, "Unhealthy")
    logs = (node.stage.plugin.log, node.stage.service.log)
    before = [log.read_text().count("\n") for log in logs]
    lists: list[dict[str, str]] = []
    async with meanwhile(listen(node, lists.append)):
        await asyncio.sleep(WINDOW)  # what is counted is what does not happen meanwhile
    lines = [log.read_text().count("\n") - count for log, count in zip(logs, before, strict=True)]
    assert 1 <= len(lists) <= MOST_LISTS
    assert max(lines) <= MOST_LINES
    assert node.kubelet.devices(RESOURCE) == {bad: "Unhealthy", good: "Healthy"}
    assert node.gpu(await node.run("train")) == good


async def fall_sick(node: Node, uuid: str) -> None:
    """The driver reports a fatal error, and the kubelet has heard of it."""
    drills.xid(node.stage.simulated, uuid, FATAL)
    await node.health(uuid, "Unhealthy")


def allocating(*groups: Sequence[str]) -> wire.AllocateRequest:
    """Devices for some containers."""
    return wire.AllocateRequest(
        container_requests=[wire.ContainerAllocateRequest(devices_ids=group) for group in groups]
    )


async def listen(node: Node, received: Callable[[dict[str, str]], None]) -> None:
    """Read the plugin's list beside the kubelet."""
    async with node.door() as plugin:
        async for reported in plugin.ListAndWatch(wire.Empty()):
            received({device.ID: device.health for device in reported.devices})


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """It runs until the end of this; should it have ended by itself, that is a failure."""
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done(), task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])
