"""Pods of the long soak: bigger ones, and more that befalls them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from demo.handout import RESOURCE
from demo.standins.pods import Container, ContainerKind, ContainerState, Phase, Pod
from tests.flows.node import Node
from tests.soak.guests import Guests
from tests.soak.pods import Pods

SHAPES = ("plain", "plain", "init", "sidecar", "pair", "only init")
NEVER_STARTS, SHOT, IMPORTED, DEAF = 0.08, 0.4, 0.12, 0.08  # how likely


class Crowd(Pods):
    """As many as there are GPUs, and a few more."""

    runs_within = 120.0
    patience = 8.0  # the kubelet may have forgotten what it gave to a pod: that one never starts again

    def __init__(self, node: Node, guests: Guests, seed: str) -> None:
        super().__init__(node, guests, seed)
        self.at_once = node.stage.gpus + 2
        self.befell: Counter[str] = Counter()
        self._guests = guests
        self._beside = asyncio.TaskGroup()

    async def keep_coming(self) -> None:
        """And until whoever sits beside them has gone."""
        async with self._beside:
            await super().keep_coming()

    def _next(self, dice: random.Random, number: int) -> Pod:
        """One to three GPUs, in all the shapes that a device plugin can tell apart."""
        name, gpus = f"pod-{number}", {RESOURCE: dice.choice((1, 1, 1, 2, 2, 3))}
        one, shape = {RESOURCE: 1}, dice.choice(SHAPES)
        self.befell[f"pods, {shape}"] += 1
        match shape:
            case "init":
                return Pod(name, (Container("init", gpus, ContainerKind.INIT), Container("main", gpus)))
            case "sidecar":
                return Pod(name, (Container("side", one, ContainerKind.SIDECAR), Container("main", one)))
            case "pair":
                return Pod(
                    name, (Container("init", one, ContainerKind.INIT), Container("left", one), Container("right", one))
                )
            case "only init":
                return Pod(name, (Container("init", one, ContainerKind.INIT), Container("main")))
        return Pod(name, (Container("main", gpus),))

    async def _live(self, pod: Pod, dice: random.Random) -> None:
        if dice.random() >= NEVER_STARTS:
            await super()._live(pod, dice)
            return
        try:
            await self._insist(lambda: self._admit(pod))
            self.befell["never started"] += pod.phase is Phase.PENDING
            await self._until_shaken(dice.uniform(0, 0.6))
            await self._insist(lambda: self._kubelet.delete(pod))
        finally:
            self._placed.pop(pod.uid, None)

    async def _work(self, pod: Pod, dice: random.Random) -> None:
        """Its containers crash or are killed, one after the other, and others look into their memory."""
        for _ in range(dice.choice((0, 0, 1, 2, 3))):
            await self._stay(pod, dice)
            name = dice.choice([it.name for it in pod.of_kind(ContainerKind.SIDECAR, ContainerKind.APP)])
            self._maybe_careless(pod, name, dice)
            if dice.random() < SHOT and self._guests.lives(pod.uid, name):
                self._guests.shoot(pod.uid, name)
                self.befell["kill -9 of a tenant"] += 1
                await asyncio.sleep(dice.choice((0, 0, 0.05)))  # before the kubelet hears of it
            self.counters.crashes += 1
            await self._kubelet.exit_container(pod, name)
            if not await self._up(pod, dice):
                return
        await self._stay(pod, dice)

    async def _stay(self, pod: Pod, dice: random.Random) -> None:
        if dice.random() < IMPORTED:
            self._beside.create_task(self._import(pod, dice.uniform(0.1, 2.5)))
        if dice.random() < DEAF:
            self._leave_deaf(pod)
        await self._until_shaken(dice.uniform(0.02, dice.choice((0.4, 0.4, 2.0))))

    async def _import(self, pod: Pod, seconds: float) -> None:
        """Another pod's process on its memory, maybe for longer than it is there itself."""
        here, others = self._running(pod.uid), [uid for uid in self._placed if uid != pod.uid and self._running(uid)]
        if not (here and others):
            return
        async with self._guests.importer(here[0], others[-1]) as came:
            self.befell["memory imported by another pod"] += came
            await self._until_shaken(seconds)

    def _leave_deaf(self, pod: Pod) -> None:
        """A daemon that outlives its container and does not listen to SIGTERM."""
        for key in self._running(pod.uid)[:1]:
            self.befell["daemons left behind"] += 1
            self._beside.create_task(self._guests.leave_behind(key, deaf=True))

    def _running(self, uid: str) -> list[tuple[str, str]]:
        """Its containers that run on a GPU."""
        pod = self._kubelet.pods.get(uid)
        if pod is None:
            return []
        up = [name for name, status in pod.statuses.items() if status.state is ContainerState.RUNNING]
        return [(uid, name) for name in up if self._guests.lives(uid, name)]
