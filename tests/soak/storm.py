"""Kills: kubelet, plugin and service, at random moments and in the middle of their work, each back a moment later."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from demo.handout import RESOURCE
from demo.standins.pods import ContainerKind, ContainerState, Pod
from scrubber.devices.simulated import drills
from tests.flows.node import Node
from tests.soak.dice import dice
from tests.soak.pods import Pods
from tests.soak.waiting import within

STRIKES = (("kubelet",), ("plugin",), ("service",), ("kubelet", "plugin"), ("service", "plugin"))
BACK_WITHIN = 30.0  # seconds until what was started again is registered and pods start
LONGEST_OUTAGE = 0.4  # seconds


class Begun(Protocol):
    """A runtime that counts its containers."""

    begun: Counter[ContainerKind]


class Storm:
    """A number of kills, and what lives through them."""

    def __init__(self, node: Node, runtime: Begun, pods: Pods, seed: str) -> None:
        self.killed: Counter[str] = Counter()
        self.during: Counter[str] = Counter()  # kills in the middle of a call
        self.seconds = 0.0
        self._node, self._runtime, self._pods = node, runtime, pods
        self._dice = dice(seed, "storm")
        self._down: dict[str, asyncio.Task[None]] = {}

    async def rage(self, enough: Callable[[], bool]) -> None:
        """Kills while pods come and go, until it is enough; then everything runs and every pod has gone."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.keep_coming())
            try:
                while not enough():
                    await self._strike()
            finally:
                self._pods.over = True
                self._heal()
                await self._all_back()
        self.seconds = time.monotonic() - began

    async def _strike(self) -> None:
        parts = self._dice.choices(STRIKES, (3, 3, 3, 1, 1))[0]
        for part in parts:
            if part in self._down:
                await self._down.pop(part)
        stalled = self._dice.random() < 0.3
        if stalled:
            drills.stall_clears(self._node.stage.simulated, self._dice.choice(self._node.stage.uuids))
        await (self._moment() if len(parts) == 1 else self._busy())
        for order, part in enumerate(parts):
            await self._kill(part)
            pause = self._dice.uniform(0, LONGEST_OUTAGE) if len(parts) == 1 else order * LONGEST_OUTAGE
            self._down[part] = asyncio.create_task(self._return(part, pause))
        if stalled:
            await asyncio.sleep(self._dice.uniform(0, 0.3))
            self._heal()
        if self._dice.random() < 0.7:
            await self._all_back()
            await self._goes_on()

    async def _moment(self) -> None:
        """In the middle of a hook, or whenever."""
        method = self._dice.choice(("Allocate", "PreStartContainer", "GetPreferredAllocation", ""))
        pause = self._dice.uniform(0, 0.3)
        if not method:
            await asyncio.sleep(pause)
            return
        kubelet = self._node.kubelet
        with suppress(TimeoutError):
            await kubelet.until(
                lambda: any(call.method == method and not call.outcome for call in kubelet.calls[-20:]), 1.0
            )
            await asyncio.sleep(self._dice.choice((0, 0, 0.001, 0.005)))
            self.during[method] += 1

    async def _busy(self) -> None:
        """Some container runs: if it crashes before the plugin is back, the kubelet starts it again without asking."""
        kubelet = self._node.kubelet
        with suppress(TimeoutError):
            await kubelet.until(lambda: any(map(_runs, kubelet.pods.values())), 3.0)

    async def _kill(self, part: str) -> None:
        stage = self._node.stage
        self.killed[part] += 1
        match part:
            case "kubelet":
                self._pods.kubelet_runs.clear()
                await stage.kubelet.kill()
            case "plugin":
                await stage.plugin.end(signal.SIGKILL)
            case _:
                await stage.service.end(signal.SIGKILL)

    async def _return(self, part: str, pause: float) -> None:
        await asyncio.sleep(pause)
        stage = self._node.stage
        match part:
            case "kubelet":
                await stage.kubelet.start()
                with suppress(TimeoutError):  # its pods are looked at about a second later, the plugin back or not
                    await stage.kubelet.registered(RESOURCE, self._dice.uniform(0, 0.5))
                self._pods.kubelet_runs.set()
                self._pods.shake()  # a restart before the plugin is back: the kubelet does not ask
            case "plugin":
                await stage.plugin.start()
            case _:
                await stage.service.start()

    async def _all_back(self) -> None:
        while self._down:
            _, task = self._down.popitem()
            await task

    async def _goes_on(self) -> None:
        """With everything back the plugin registers, and containers start again."""
        kubelet, stage = self._node.kubelet, self._node.stage
        wanted = self._runtime.begun.total() + self._dice.choice((1, 1, 3))

        def what() -> str:
            words = f"plugin: {stage.plugin.last_words()}; service: {stage.service.last_words()}"
            return f"containers to start after {self.killed}; offered: {kubelet.devices(RESOURCE)}; {words}"

        async with within(BACK_WITHIN, what):
            await kubelet.registered(RESOURCE, BACK_WITHIN)
            await kubelet.until(lambda: self._runtime.begun.total() >= wanted, BACK_WITHIN)

    def _heal(self) -> None:
        for uuid in self._node.stage.uuids:
            drills.heal(self._node.stage.simulated, uuid)


def _runs(pod: Pod) -> bool:
    return any(pod.statuses[it.name].state is ContainerState.RUNNING for it in pod.of_kind(ContainerKind.APP))
