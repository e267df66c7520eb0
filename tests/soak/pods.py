"""The pods of a history: each is started by a move, lives and ends by its own dice, and tells why it was refused."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from demo.installation import RESOURCE
from demo.standins.kubelet import NotRunning, PodEnded
from demo.standins.pods import Container, ContainerKind, ContainerState, Phase, Pod
from tests.flows.node import Node
from tests.patience import WITHIN
from tests.soak.hostile import Hostile

R = TypeVar("R")

KINDS = ((ContainerKind.INIT,), (ContainerKind.SIDECAR, ContainerKind.APP))
SHAPES = ("plain", "plain", "init", "sidecar", "pair", "only init")
RUNS_WITHIN = 150.0  # seconds for an admitted pod
GIVES_UP_AFTER = 6.0  # seconds: a pod that does not run for so long is deleted
WAITS_FOR_ROOM = 2.0  # seconds
# How likely it is in trouble that a pod is bound to the node without room, hides the environment of its processes, or
# never starts; and that a container of a pod is killed, or leaves a process behind.
BOUND, EMPTIED, NEVER_STARTS, KILLED, CARELESS = 0.15, 0.1, 0.08, 0.3, 0.25


@dataclass
class Counters:
    """What the pods did, and what was done to them."""

    came: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def refuse(self, pod: Pod) -> None:
        """Count a failed pod; its message must give a reason."""
        why = re.search(r"Allocate failed due to (.+), which is unexpected", pod.message)
        if pod.phase is not Phase.FAILED or why is None:
            self.faults.append(f"{pod.name} was refused without a reason: {pod.status}")
        else:
            self.refused[_without_names(why[1])] += 1

    def wait(self, pod: Pod) -> None:
        """Look at a pod that waits: its containers must give a reason."""
        for name, status in pod.statuses.items():
            if status.state is ContainerState.WAITING and status.reason and not status.message:
                self.faults.append(f"{name} of {pod.name} waits without a reason: {status}")


class Pods:
    """All pods of one history."""

    def __init__(self, node: Node, runtime: Hostile) -> None:
        self.calm = False  # no faults, and pods come and go in ordinary ways
        self.counters = Counters()
        self.kubelet_runs = asyncio.Event()
        self.kubelet_runs.set()
        self._shaken = asyncio.Event()
        self._node, self._kubelet, self._runtime = node, node.kubelet, runtime
        self._placed: dict[str, int] = {}  # pod UID to GPUs, as a scheduler counts

    async def come(self, dice: random.Random) -> Pod | None:
        """Play a pod from its admission to its end; None if there is no room for it."""
        pod = self._next(dice, len(self._runtime.names))
        self._runtime.names[pod.uid] = pod.name
        bound = not self.calm and dice.random() < BOUND
        if not bound and not await self.placed(pod):
            return None
        if not self.calm and dice.random() < EMPTIED:
            self._runtime.tenants.emptied.add(pod.uid)
        try:
            await self._live(pod, dice)
        finally:
            self._placed.pop(pod.uid, None)
        return pod

    async def placed(self, pod: Pod) -> bool:
        """Whether there is room for the pod, now or soon. It is counted as placed from then on."""
        try:
            await self._kubelet.until(lambda: self._free() >= gpus_of(pod), WITHIN if self.calm else WAITS_FOR_ROOM)
        except TimeoutError:
            if self.calm:
                raise
            return False
        self._placed[pod.uid] = gpus_of(pod)
        return True

    async def through(self, pod: Pod, dice: random.Random) -> None:
        """Play an admitted pod until its end."""
        if pod.phase is not Phase.FAILED and await self._up(pod, dice):
            await self._work(pod, dice)

    async def forget(self, *pods: Pod) -> None:
        """Delete these pods, whatever became of them."""
        for pod in pods:
            self._placed.pop(pod.uid, None)
            if pod.uid in self._kubelet.pods:
                await self._insist(partial(self._kubelet.delete, pod))

    def shake(self) -> None:
        """End all pauses: each container that is to crash or to end does it now."""
        shaken, self._shaken = self._shaken, asyncio.Event()
        shaken.set()

    def _next(self, dice: random.Random, number: int) -> Pod:
        """A pod of one to three GPUs, in one of the shapes that a device plugin can tell apart."""
        name, shape = f"pod-{number}", dice.choice(SHAPES)
        gpus, one = {RESOURCE: min(dice.choice((1, 1, 1, 2, 2, 3)), self._node.stage.gpus)}, {RESOURCE: 1}
        self.counters.came[f"pods, {shape}"] += 1
        match shape:
            case "init":
                return Pod(name, (Container("init", gpus, ContainerKind.INIT), Container("main", gpus)))
            case "sidecar":
                return Pod(name, (Container("side", one, ContainerKind.SIDECAR), Container("main", one)))
            case "pair":
                return Pod(
                    name, (Container("init", one, ContainerKind.INIT), Container("main", one), Container("other", one))
                )
            case "only init":
                return Pod(name, (Container("init", one, ContainerKind.INIT), Container("main")))
        return Pod(name, (Container("main", gpus),))

    def _free(self) -> int:
        return self._kubelet.allocatable.get(RESOURCE, 0) - sum(self._placed.values())

    async def _live(self, pod: Pod, dice: random.Random) -> None:
        status = await self._insist(lambda: self._admit(pod))
        if not self.calm and dice.random() < NEVER_STARTS:
            self.counters.came["never started"] += status is Phase.PENDING
            await self._until_shaken(dice.uniform(0, 0.6))
            await self._insist(lambda: self._kubelet.delete(pod))
            return
        if status is not Phase.FAILED and await self._up(pod, dice):
            await self._work(pod, dice)
        await self._end(pod, dice)

    async def _admit(self, pod: Pod) -> Phase:
        """Admit a pod, unless a new kubelet has refused it already."""
        if pod.phase is not Phase.FAILED:
            await self._kubelet.admit(pod)
        return pod.phase

    async def _up(self, pod: Pod, dice: random.Random) -> bool:
        """Whether the pod runs in the end; not when a new kubelet does not admit it again."""
        gives_up = time.monotonic() + GIVES_UP_AFTER
        async with within(RUNS_WITHIN, lambda: f"{pod.name} to run: {pod.status} {pod.statuses}"):
            while time.monotonic() < gives_up:
                for container in pod.of_kind(ContainerKind.INIT):
                    if pod.statuses[container.name].state is ContainerState.RUNNING:  # the kubelet died meanwhile
                        await self._kubelet.exit_container(pod, container.name)
                try:
                    if await self._insist(lambda: self._kubelet.sync(pod)):
                        return True
                except PodEnded:
                    return False
                self.counters.wait(pod)
                await asyncio.sleep(dice.uniform(0.05, 0.2))
        self.counters.came["given up"] += 1
        return False

    async def _work(self, pod: Pod, dice: random.Random) -> None:
        """Containers of the pod crash or are killed, and some leave a process behind."""
        for _ in range(dice.choice((0, 0, 1, 1, 2, 3))):
            await self._until_shaken(dice.uniform(0.02, 0.4))
            name = dice.choice([it.name for it in pod.of_kind(ContainerKind.SIDECAR, ContainerKind.APP)])
            if not self.calm:
                self._maybe_careless(pod, name, dice)
            if dice.random() < KILLED and self._runtime.lives(pod.uid, name):
                self._runtime.shoot(pod.uid, name)
                self.counters.came["killed containers"] += 1
                await asyncio.sleep(dice.choice((0, 0, 0.05)))  # before the kubelet hears of it
            self.counters.came["crashes"] += 1
            await self._kubelet.exit_container(pod, name)
            if not await self._up(pod, dice):
                return
        await self._until_shaken(dice.uniform(0.02, dice.choice((0.3, 0.6, 2.0))))

    async def _until_shaken(self, most: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._shaken.wait(), most)

    async def _end(self, pod: Pod, dice: random.Random) -> None:
        if pod.phase is Phase.FAILED:
            self.counters.refuse(pod)
            await self._insist(lambda: self._kubelet.delete(pod))
            return
        if not self.calm:
            self._maybe_careless(pod, dice.choice(pod.containers).name, dice)
        end = dice.choice(("finished", "deleted") if self.calm else ("finished", "deleted", "force-deleted"))
        self.counters.came[f"ends: {end}"] += 1
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
        if dice.random() < CARELESS:
            self.counters.came["left a process behind"] += 1
            self._runtime.careless.add((pod.uid, name))

    async def _insist(self, deed: Callable[[], Awaitable[R]]) -> R:
        """Do it again with the next kubelet when one dies in the middle of it."""
        while True:
            await self.kubelet_runs.wait()
            with suppress(NotRunning):
                return await deed()
            await asyncio.sleep(0.01)


class InVain(AssertionError):
    """A wait ended without its condition."""


@asynccontextmanager
async def within(seconds: float, what: Callable[[], str]) -> AsyncIterator[None]:
    """The body ends in time, or the history fails in these words."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise InVain(f"waited {seconds:g} s in vain for {what()}") from None


def gpus_of(pod: Pod) -> int:
    """How many it needs, as a scheduler counts: init containers run one after the other, and before the others."""
    inits, later = ([it.resources.get(RESOURCE, 0) for it in pod.of_kind(*kinds)] for kinds in KINDS)
    return max(*inits, 0, sum(later))


def _without_names(words: str) -> str:
    """Without names and numbers, for counting."""
    return re.sub(r"GPU-[0-9a-f-]+|[0-9a-f]{8}-[0-9a-f-]{27}|/\S+|\d+", "#", words)
