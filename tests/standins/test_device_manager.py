"""The stand-in treats a plugin as the kubelet's own device manager does: one story on both, in the same words.

``make node`` builds the latter. What the stand-in adds, such as pods, runtime and restarts, is compared by
``make cluster``.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from demo.stage import Stage
from demo.standins.do_nothing_plugin import RESOURCE, DoNothingPlugin
from demo.standins.kubelet import Kubelet
from demo.standins.pods import ContainerState, Pod
from demo.standins.timing import Timing
from scrubber.node import assignments
from tests.patience import WITHIN

PROGRAM = Path(__file__).parents[2] / "build/node/devicemanager"
# Its directory has a fixed name, so it gets mounts of its own.
ALONE = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--mount", "sh", "-ec")
MOUNT = (
    "mount -t tmpfs none /var/lib; mkdir -p /var/lib/kubelet/device-plugins; "
    'mount --bind "$1" /var/lib/kubelet/device-plugins; exec "$2"'
)

REJECTED, UNEXPECTED = "Pod was rejected: Allocate failed due to ", ", which is unexpected"  # the kubelet's own words
STOPPED = re.compile("(?<=endpoint ).*(?= has been stopped)")
RESOURCE_OF_OURS = "nvidia.com/gpu"


class Noting(DoNothingPlugin):
    """Notes who calls it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.called: list[str] = []

    async def _called(self, method: str, context: Any) -> None:  # noqa: ANN401 - gRPC's
        self.called.append(method)
        await super()._called(method, context)


class Device(Protocol):
    """What the story asks of a kubelet. Pods have one container; an empty answer is yes."""

    async def admit(self, pod: str, number: int) -> tuple[str, list[str]]:
        """Why it is refused, and else its devices."""

    async def start(self, pod: str) -> str:
        """Why its container is not started."""

    async def end(self, pod: str) -> None:
        """It is gone."""

    async def offers(self) -> tuple[int, int]:
        """Capacity, and what is allocatable."""


@dataclass
class Real:
    """The device manager of the kubelet. Go prints the whole endpoint where the stand-in names it."""

    process: asyncio.subprocess.Process
    resource: str

    async def _ask(self, *words: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{' '.join(map(str, words))}\n".encode())
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return found | {"error": STOPPED.sub("", found["error"])}

    async def admit(self, pod: str, number: int) -> tuple[str, list[str]]:
        found = await self._ask("admit", pod, number, self.resource)
        return found["error"], sorted(found.get("devices", ()))

    async def start(self, pod: str) -> str:
        return str((await self._ask("start", pod))["error"])

    async def end(self, pod: str) -> None:
        await self._ask("end", pod)

    async def offers(self) -> tuple[int, int]:
        found = await self._ask("offers", self.resource)
        return found["capacity"], found["allocatable"]


@dataclass
class StandIn:
    """The stand-in."""

    kubelet: Kubelet
    pods: dict[str, Pod] = field(default_factory=dict)

    async def admit(self, pod: str, number: int) -> tuple[str, list[str]]:
        made = Pod.of(pod, {RESOURCE: number})
        made.uid = pod
        status = await self.kubelet.admit(made)
        if status.message:
            return status.message.removeprefix(REJECTED).removesuffix(UNEXPECTED), []
        self.pods[pod] = made
        return "", sorted(self.kubelet.held(made)["main"][RESOURCE])

    async def start(self, pod: str) -> str:
        made = self.pods[pod]
        if made.statuses and made.statuses["main"].state is ContainerState.RUNNING:
            await self.kubelet.exit_container(made, "main")
        return STOPPED.sub("", (await self.kubelet.start_container(made, "main")).message)

    async def end(self, pod: str) -> None:
        await self.kubelet.delete(self.pods.pop(pod))
        self.kubelet.list_pod_resources()  # which frees its devices

    async def offers(self) -> tuple[int, int]:
        return self.kubelet.capacity.get(RESOURCE, 0), self.kubelet.allocatable.get(RESOURCE, 0)


@asynccontextmanager
async def real(directory: Path, resource: str = RESOURCE) -> AsyncIterator[Device]:
    process = await asyncio.create_subprocess_exec(
        *(*ALONE, MOUNT, "sh", directory, PROGRAM),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    manager = Real(process, resource)
    try:
        await manager.answer()
        yield manager
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def standing_in(directory: Path) -> AsyncIterator[Device]:
    async with Kubelet(directory, timing=Timing()) as kubelet:
        yield StandIn(kubelet)


async def until_offers(kubelet: Device, capacity: int, allocatable: int) -> None:
    async with asyncio.timeout(WITHIN):
        while await kubelet.offers() != (capacity, allocatable):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)


async def story(kubelet: Device, directory: Path) -> list[object]:
    """What each step of the story answers, and whom it called."""
    answers: list[object] = []
    plugin = Noting(directory)

    async def admit(pod: str, number: int) -> None:
        answers.append((pod, *await kubelet.admit(pod, number)))

    async def start(pod: str) -> None:
        answers.append((pod, await kubelet.start(pod)))

    await plugin.begin()
    await until_offers(kubelet, 4, 4)
    await admit("first", 2)
    await start("first")
    await start("first")  # its container began again
    await admit("second", 2)
    await admit("third", 1)
    await kubelet.end("first")
    await admit("fourth", 1)
    plugin.fail["Allocate"] = "not yet"
    await admit("fifth", 1)
    plugin.fail = {"PreStartContainer": "not clean"}
    await start("fourth")
    plugin.fail.clear()
    await start("fourth")
    plugin.show(g1="Unhealthy")
    await until_offers(kubelet, 4, 3)
    await admit("sixth", 1)
    answers.append(sorted(map(str, assignments.by_device(directory))))
    answers.append({it: sorted(assigned.pods) for it, assigned in assignments.by_device(directory).items()})
    await plugin.stop()
    await until_offers(kubelet, 4, 0)
    await admit("seventh", 1)
    answers.append(await kubelet.start("second"))
    again = Noting(directory)
    await again.begin()
    await until_offers(kubelet, 4, 4)
    answers.append(await kubelet.start("second"))
    await again.stop()
    return [*answers, plugin.called, again.called]


built = pytest.mark.skipif(
    not PROGRAM.exists(), reason="the kubelet's device manager is not here: make node builds it, with Go"
)


@built
async def test_it_answers_as_the_device_manager_of_the_kubelet_does(directory: Path) -> None:
    answers = []
    for name, kubelet in (("real", real), ("standin", standing_in)):
        place = directory / name
        place.mkdir()
        async with kubelet(place) as started:
            answers.append(await story(started, place))
    assert answers[1] == answers[0]


@built
async def test_our_plugin_serves_the_device_manager_of_the_kubelet() -> None:
    stage = Stage(2, "1MiB", fenced=False)
    try:
        await stage.start()
        async with real(stage.kubelet_dir, RESOURCE_OF_OURS) as manager:
            await stage.plugin.start()
            await until_offers(manager, 2, 2)
            refused, devices = await manager.admit("first", 1)
            assert (refused, len(devices)) == ("", 1)
            assert (await manager.start("first"), await manager.start("first")) == ("", "")
            assert await manager.admit("second", 1) == ("", sorted({*stage.uuids} - {*devices}))
            assert await manager.admit("third", 1) == (
                "requested number of devices unavailable for nvidia.com/gpu. Requested: 1, Available: 0", [],
            )  # fmt: skip
            await stage.plugin.end(signal.SIGKILL)
            await until_offers(manager, 2, 0)
            await stage.plugin.start()
            await until_offers(manager, 2, 2)
            assert await manager.start("second") == ""
    finally:
        await stage.clear_away(keep=False)
