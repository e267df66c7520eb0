"""What befalls the node of the long soak, beside its pods: programs that end, a checkpoint that is lost, intruders."""

from __future__ import annotations

import asyncio
import random
import signal
import uuid as uuids
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress

from demo.standins.kubelet import NotRunning
from scrubber.core import views
from scrubber.ground.errors import NotReady, Refused, Unreachable
from scrubber.ledger import database
from scrubber.node import checkpoint
from tests.flows.node import Node
from tests.soak.crowd import Crowd
from tests.soak.dice import dice as dice_of
from tests.soak.guests import Guests
from tests.soak.storm import Storm

GENTLY, DAMAGED = 0.3, 0.15  # how likely
CALM = 5.0  # seconds at most between two strikes: also a node on which nothing is killed has its moments
SEEN_WITHIN = 5.0  # seconds for an intruder to be noticed
ABROAD = 2  # intruders at once
NEVER = -1


class Weather(Storm):
    """Kills with pauses; some programs are only told to end, some kubelets find their checkpoint damaged."""

    def __init__(self, node: Node, guests: Guests, crowd: Crowd, seed: str) -> None:
        super().__init__(node, guests, crowd, seed)
        self.befell = crowd.befell

    async def _strike(self) -> None:
        await super()._strike()
        await asyncio.sleep(self._dice.uniform(0, CALM))

    async def _kill(self, part: str) -> None:
        stage = self._node.stage
        if part != "kubelet" and self._dice.random() < GENTLY:
            self.killed[part] += 1
            self.befell[f"{part} told to end"] += 1
            await (stage.plugin if part == "plugin" else stage.service).end(signal.SIGTERM)
            return
        await super()._kill(part)
        self.befell[f"{part} killed"] += 1
        if part == "kubelet" and self._dice.random() < DAMAGED:
            self.befell["kubelet begins without its checkpoint"] += 1
            damage(self._node, self._dice)


class Intruders:
    """Whoever else is on the node: by their own dice, every moment."""

    def __init__(self, node: Node, guests: Guests, crowd: Crowd, seed: str) -> None:
        self.refused: Counter[str] = Counter()
        self._node, self._guests, self._crowd = node, guests, crowd
        self._dice = dice_of(seed, "intruders")
        self._abroad: set[str] = set()  # GPUs that one of them is on: two would write over each other

    async def keep_coming(self) -> None:
        """As long as pods do."""
        deeds: tuple[Callable[[random.Random], Coroutine[None, None, None]], ...] = (
            self._intrude,
            self._order,
            self._forget,
            self._damage,
        )
        async with asyncio.TaskGroup() as under_way:
            while not self._crowd.over:
                await asyncio.sleep(self._dice.uniform(0.1, 1.5))
                [deed] = self._dice.choices(deeds, (6, 3, 2, 1))
                under_way.create_task(deed(dice_of(str(self._dice.random()), "deed")))

    async def _intrude(self, dice: random.Random) -> None:
        """A process of the host opens a GPU, and writes there once it was noticed and nobody else has that GPU."""
        free = [uuid for uuid in self._node.stage.uuids if uuid not in self._abroad and not self._is_given(uuid)]
        if len(self._abroad) >= ABROAD or not free:
            return
        uuid, uid = dice.choice(free), str(uuids.UUID(int=dice.getrandbits(128)))
        self._abroad.add(uuid)
        try:
            with suppress(Unreachable):
                before = await self._standing(uuid)
                if before == NEVER:
                    return
                async with self._guests.foreigner(uid, uuid) as guest:
                    if guest is not None and await self._is_noticed(uuid, before):
                        await self._guests.welcome(guest, uid, uuid)
                        self._crowd.befell["host process on a free GPU"] += 1
                        await asyncio.sleep(dice.uniform(0.2, 3.0))
        finally:
            self._abroad.remove(uuid)

    async def _standing(self, uuid: str) -> int:
        """How far the ledger is while the GPU is clean; otherwise NEVER."""
        async with self._node.stage.admin() as admin:
            status = await admin.status([uuid])
        return status.service.ledger_rows if status.devices[0].state == "clean" else NEVER

    async def _is_noticed(self, uuid: str, before: int) -> bool:
        """The service has it down as dirty and does nothing to it, and it was nobody's since it was clean.

        Otherwise whoever came meanwhile is a leftover of somebody, and is ended.
        """
        number = self._node.stage.uuids.index(uuid)
        noticed = _is_left_alone(await self._node.stage.settled(number, _is_left_alone, SEEN_WITHIN))
        with closing(database.connect(self._node.stage.ledger, "mode=ro")) as connection:
            since = [row.kind for row in database.rows(connection, before + 1) if row.device == uuid]
        return noticed and not {"granted", "in_use"} & set(since) and not self._is_given(uuid)

    def _is_given(self, uuid: str) -> bool:
        """To a pod, as far as the kubelet remembers; a dead one remembers nothing, so nobody writes."""
        kubelet = self._node.kubelet
        try:
            held = [kubelet.held(pod) for pod in kubelet.pods.values()]
        except NotRunning:
            return True
        return any(uuid in ids for of in held for resources in of.values() for ids in resources.values())

    async def _order(self, dice: random.Random) -> None:
        """An operator wants a GPU scrubbed, whoever has it."""
        self._crowd.befell["scrub ordered by hand"] += 1
        try:
            async with self._node.stage.admin() as admin:
                ends = [it.result async for it in admin.scrub([dice.choice(self._node.stage.uuids)]) if it.result]
            self.refused["scrubbed" if ends and ends[-1].clean else "not scrubbed"] += 1
        except (Refused, NotReady, Unreachable) as error:
            self.refused[type(error).__name__] += 1

    async def _forget(self, _: random.Random) -> None:
        """Somebody asks PodResources, and the kubelet forgets what an Allocate under way has taken."""
        with suppress(NotRunning):
            self._node.kubelet.list_pod_resources()
            self._crowd.befell["PodResources asked"] += 1

    async def _damage(self, dice: random.Random) -> None:
        """The checkpoint cannot be read until the kubelet writes it again."""
        self._crowd.befell["checkpoint damaged"] += 1
        damage(self._node, dice)


def damage(node: Node, dice: random.Random) -> None:
    """The kubelet's checkpoint is lost, or cut off."""
    file = node.stage.kubelet_dir / checkpoint.NAME
    if dice.random() < 0.5:
        file.unlink(missing_ok=True)
    else:
        file.write_text("{")


def _is_left_alone(device: views.DeviceStatus) -> bool:
    return device.state == "dirty" and device.job is None
