"""Requests and checks that several tests of the service share."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from scrubber.core import events as ev
from scrubber.core.model import Facts
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from scrubber.node import assignments
from scrubber.observe.observer import Observer


def rows(world, kind, device=None):
    return [it.event for it in world.truth.entries if isinstance(it.event, kind) and device in (None, it.device)]


def results(world, device=None):
    """The results of all steps, as far as they were recorded."""
    return [result for it in rows(world, ev.StepsRecorded, device) for result in it.results]


def scrubs(world, device):
    return len(rows(world, ev.ScrubPassed, device))


def reported(world, device):
    return next(it for it in world.life.reporter.reported().devices if it.uuid == device)


def healthy(world, device):
    return reported(world, device).healthy


async def at_step(world, device, step):
    """Return as soon as its job is at a step."""
    async with asyncio.timeout(3600):
        while (job := world.life.jobs.of(device)) is None or job.step is not step:  # noqa: ASYNC110 - on virtual time
            await asyncio.sleep(0.001)


def written_down(world, containers=(), /, **pods):
    """What the kubelet's checkpoint says: devices by pod; ``containers`` by pod, if not one."""
    named = dict(containers)
    entries = [
        {"PodUID": pod, "ContainerName": name, "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"-1": list(devices)}}
        for pod, devices in pods.items()
        for name in named.get(pod, ["app"])
    ]
    text = json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 1})
    file = world.life.observer._kubelet_dir / assignments.NAME
    file.write_text(text)
    os.utime(file, (world.node.now().wall,) * 2)  # this world has a clock of its own


async def let_on(world, pod, *devices):
    """A pod's first container, from Allocate to its first process."""
    await world.acquire(pod, *devices, announced=True)
    written_down(world, **{pod: devices})
    await world.tenant_requests.start(devices, None)
    world.truth.started(pod, devices[0])
    return [world.run(pod, device) for device in devices]


def looking(
    observer: Observer, *purposes: Purpose, does: Callable[[Callable[[], Awaitable[Facts]], Record], Awaitable[Facts]]
) -> Callable[..., Awaitable[Facts]]:
    """``Observer.look`` that goes this way for these purposes. ``does`` gets the real look, and the record."""
    real = observer.look

    async def look(record: Record, purpose: Purpose, **more: Any) -> Facts:  # noqa: ANN401 - passed on
        asked = partial(real, record, purpose, **more)
        return await (does(asked, record) if purpose in purposes else asked())

    return look
