"""Pods that come, live and go by their own dice while the programs under them are killed."""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from demo.handout import RESOURCE
from demo.standins.kubelet import NotRunning, PodEnded
from demo.standins.pods import Container, ContainerKind, ContainerState, Phase, Pod
from tests.flows.node import Node
from tests.soak.dice import dice as dice_of
from tests.soak.waiting import within

R = TypeVar("R")

KINDS = ((ContainerKind.INIT,), (ContainerKind.SIDECAR, ContainerKind.APP))


class Careless(Protocol):
    """A runtime that can be told to leave something behind."""

    careless: set[tuple[str, str]]  # pod UID, container


@dataclass
class Tally:
    """What came of them."""

    pods: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    waited: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    crashes: int = 0
    gave_up: int = 0
    zombies: int = 0
    faults: list[str] = field(default_factory=list)

    def refuse(self, pod: Pod) -> None:
        """It failed, and must say why."""
        why = re.search(r"Allocate failed due to (.+), which is unexpected", pod.message)
        if pod.phase is not Phase.FAILED or why is None:
            self.faults.append(f"{pod.name} was refused without a reason: {pod.status}")
        else:
            self.refused[_plain(why[1])] += 1

    def wait(self, pod: Pod) -> None:
        """Its containers wait, and must say what for."""
        for name, status in pod.statuses.items():
            if status.state is ContainerState.WAITING and status.reason and not status.message:
                self.faults.append(f"{name} of {pod.name} waits without a reason: {status}")
            elif status.message:
                self.waited[_plain(status.message)] += 1


class Pods:
    """All of them. ``over`` ends the coming, not the going."""

    at_once = 5  # pods, on three GPUs: some must wait
    runs_within = 40.0  # seconds for an admitted pod, with a kill about every second
    patience = math.inf  # seconds after which a pod that does not run is deleted

    def __init__(self, node: Node, runtime: Careless, seed: str) -> None:
        self.counters = Tally()
        self.over = False
        self.kubelet_runs = asyncio.Event()
        self.kubelet_runs.set()
        self._shaken = asyncio.Event()
        self._kubelet = node.kubelet
        self._runtime = runtime
        self._seed = seed
        self._placed: dict[str, int] = {}  # UID to GPUs, as a scheduler counts

    async def keep_coming(self) -> None:
        """Until it is over; returns when the last one has gone."""
        dice = dice_of(self._seed, "coming")
        async with asyncio.TaskGroup() as lives:
            while not self.over:
                pod = self._next(dice, self.counters.pods)
                if not await self._fits(pod, dice):
                    continue
                self.counters.pods += 1
                self._placed[pod.uid] = gpus_of(pod)
                lives.create_task(self._live(pod, dice_of(self._seed, pod.name)))
                await asyncio.sleep(dice.uniform(0, 0.05))

    def shake(self) -> None:
        """Whoever was to crash or to end some time does it now."""
        shaken, self._shaken = self._shaken, asyncio.Event()
        shaken.set()

    def _next(self, dice: random.Random, number: int) -> Pod:
        """One or two GPUs; some with an init container that uses the same, some with a sidecar that has its own."""
        gpus = {RESOURCE: dice.choice((1, 1, 1, 2))}
        main, shape = Container("main", gpus), dice.random()
        if shape < 0.2:
            return Pod(f"pod-{number}", (Container("init", gpus, ContainerKind.INIT), main))
        if shape < 0.35:
            side = Container("side", {RESOURCE: 1}, ContainerKind.SIDECAR)
            return Pod(f"pod-{number}", (side, Container("main", {RESOURCE: 1})))
        return Pod(f"pod-{number}", (main,))

    async def _fits(self, pod: Pod, dice: random.Random) -> bool:
        """As a scheduler would place it; one in ten is bound to the node whatever it offers."""
        bound = dice.random() < 0.1

        def room() -> bool:
            free = self._kubelet.allocatable.get(RESOURCE, 0) - sum(self._placed.values())
            return len(self._placed) < self.at_once and (bound or free >= gpus_of(pod))

        while not self.over and not room():
            with suppress(TimeoutError):
                await self._kubelet.until(lambda: room() or self.over, 0.1)
        return not self.over

    async def _live(self, pod: Pod, dice: random.Random) -> None:
        try:
            status = await self._insist(lambda: self._admit(pod))
            if status is not Phase.FAILED and await self._up(pod, dice):
                await self._work(pod, dice)
            await self._end(pod, dice)
        finally:
            self._placed.pop(pod.uid, None)

    async def _admit(self, pod: Pod) -> Phase:
        """Not again when a new kubelet has refused it already."""
        if pod.phase is not Phase.FAILED:
            await self._kubelet.admit(pod)
        return pod.phase

    async def _up(self, pod: Pod, dice: random.Random) -> bool:
        """Whether it runs in the end; not when a new kubelet does not admit it again."""
        gives_up = time.monotonic() + self.patience
        async with within(self.runs_within, lambda: f"{pod.name} to run: {pod.status} {pod.statuses}"):
            while time.monotonic() < gives_up:
                for container in pod.of_kind(ContainerKind.INIT):
                    if (
                        pod.statuses[container.name].state is ContainerState.RUNNING
                    ):  # the kubelet died in the middle of it
                        await self._kubelet.exit_container(pod, container.name)
                try:
                    if await self._insist(lambda: self._kubelet.sync(pod)):
                        return True
                except PodEnded:
                    return False
                self.counters.wait(pod)
                await asyncio.sleep(dice.uniform(0.05, 0.2))
        self.counters.gave_up += 1
        return False

    async def _work(self, pod: Pod, dice: random.Random) -> None:
        """Its containers crash a few times, and some leave a process behind."""
        for _ in range(dice.choice((0, 0, 1, 2, 3))):
            await self._until_shaken(dice.uniform(0.02, dice.choice((0.4, 0.4, 2.0))))
            name = dice.choice([it.name for it in pod.of_kind(ContainerKind.SIDECAR, ContainerKind.APP)])
            self._maybe_careless(pod, name, dice)
            self.counters.crashes += 1
            await self._kubelet.exit_container(pod, name)
            if not await self._up(pod, dice):
                return
        await self._until_shaken(dice.uniform(0.02, dice.choice((0.4, 0.4, 2.0))))

    async def _until_shaken(self, most: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._shaken.wait(), most)

    async def _end(self, pod: Pod, dice: random.Random) -> None:
        if pod.phase is Phase.FAILED:
            self.counters.refuse(pod)
            await self._insist(lambda: self._kubelet.delete(pod))
            return
        self._maybe_careless(pod, dice.choice(pod.containers).name, dice)
        end = dice.choice(("finished", "deleted", "force-deleted"))
        self.counters.ended[end] += 1
        if end == "finished":
            await self._kubelet.finish(pod)
        if end == "force-deleted":
            await self._insist(lambda: self._kubelet.force_delete(pod))
            self._placed.pop(pod.uid, None)
            await asyncio.sleep(dice.uniform(0.1, 1.2))
            await self._kubelet.end_orphan(pod)
        else:
            await self._insist(lambda: self._kubelet.delete(pod))

    def _maybe_careless(self, pod: Pod, name: str, dice: random.Random) -> None:
        if dice.random() < 0.25:
            self.counters.zombies += 1
            self._runtime.careless.add((pod.uid, name))

    async def _insist(self, deed: Callable[[], Awaitable[R]]) -> R:
        """Again with the next kubelet when one dies in the middle of it."""
        while True:
            await self.kubelet_runs.wait()
            with suppress(NotRunning):
                return await deed()
            await asyncio.sleep(0.01)


def gpus_of(pod: Pod) -> int:
    """How many it needs, as a scheduler counts: init containers run one after the other, and before the others."""
    inits, later = ([it.resources.get(RESOURCE, 0) for it in pod.of_kind(*kinds)] for kinds in KINDS)
    return max(*inits, 0, sum(later))


def _plain(words: str) -> str:
    """Without names and numbers, for counting."""
    return re.sub(r"GPU-[0-9a-f-]+|[0-9a-f]{8}-[0-9a-f-]{27}|/\S+|\d+", "#", words)
