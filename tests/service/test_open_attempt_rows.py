"""Who opened a device that was not given to him is in the ledger: once in each tenancy, and also for later lives."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field

import pytest

from scrubber.core.events import OpenAttempted
from scrubber.core.fencing import open_to
from scrubber.core.model import OTHER_CONTAINERS, Opener
from scrubber.core.record import Record
from scrubber.fence.live_openers import LiveOpeners
from scrubber.node.pods import Tenants
from scrubber.service.open_attempt_rows import OpenAttemptRows
from tests.service.world import World


@dataclass
class Node:
    """A world with strangers, and the task that writes about them in the present life of its service."""

    world: World
    live: LiveOpeners = field(init=False)
    openers: OpenAttemptRows = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.live = LiveOpeners(lambda: self.world.node.now().wall)
        ledger = self.world.life.ledger
        tell = ledger.on_record

        def on_record(record: Record) -> None:
            self.live.began(record, open_to(record), self.world.node.now().uptime)
            tell(record)

        ledger.on_record = on_record
        for record in ledger.records.values():
            self.live.began(record, open_to(record), self.world.node.now().uptime)
        self.openers = OpenAttemptRows(self.world.context, self.live)
        self.world.spawn(self.openers.run())

    async def begin_again(self) -> None:
        await self.world.die()
        await self.world.start()
        self.begin()
        await asyncio.sleep(2)

    async def is_used(self) -> str:
        """A tenant has the first device, and is known."""
        tenant = await self.world.tenancy(self.world.uuids[0])
        await asyncio.sleep(2)
        return tenant

    async def ask(self, place: str, times: int = 1, **how: bool) -> None:
        for _ in range(times):
            self.attempt(self.world.uuids[0], place, **how)
        await asyncio.sleep(2)

    def attempt(
        self, uuid: str, place: str, *, refused: bool = False, exempt: bool = False, ignored: bool = False
    ) -> None:  # fmt: skip
        now = self.world.node.now()
        opener = Opener(place, "", "python", 42, exempt, 1, int(refused), now.wall, now.wall)
        self.live.add(uuid, opener, ignored=ignored, at=now.uptime)

    async def rows(self) -> list[tuple[str, int, bool, bool]]:
        """Who, how often, whether somebody had the device, and whether that is the last row of him."""
        return [(it.opener.place, it.opener.times, it.held, it.ended) for it in await self.attempts()]

    async def attempts(self) -> list[OpenAttempted]:
        rows = [it.event for it in (await self.world.life.ledger.history(None, None, 1000)).entries]
        return [it for it in rows if isinstance(it, OpenAttempted)]

    async def left_out(self) -> list[tuple[int, int, bool]]:
        """How many had no row, how often they asked, and whether that is the last row about them."""
        others = [it for it in await self.attempts() if it.opener.place == OTHER_CONTAINERS]
        return [(int(it.opener.command), it.opener.times, it.ended) for it in others]

    def named(self) -> list[tuple[str, str, int]]:
        """Whom an explanation names."""
        return [(it.place, it.pod, it.times) for live in self.live.of(self.world.uuids[0]) for it in [live.opener]]


@pytest.fixture
async def node(begin) -> Node:
    world: World = await begin(gpus=4)
    return Node(world)


async def test_an_opener_has_two_rows_in_a_period_at_most(node):
    await node.ask("stranger", 3)
    await node.ask("stranger", 2)
    await node.ask("monitor", ignored=True)
    world, device = node.world, node.world.uuids[0]
    tenant = await world.tenancy(device)
    await node.ask("stranger", 4)  # until the owner is known, all may open it: so may he
    await node.ask("other", refused=True)
    await node.ask("stranger", 5)
    await node.ask("stranger", 2)
    world.node.end_container(tenant)
    await world.clean(device)
    assert await node.rows() == [
        ("stranger", 3, False, False), ("stranger", 5, False, True),
        ("other", 1, True, False), ("stranger", 5, True, False), ("stranger", 7, True, True),
    ]  # fmt: skip


async def test_a_later_life_names_them_and_writes_no_row_again(node):
    async def tenants() -> Tenants:
        return Tenants(names={"stranger": "team/x"})

    node.world.context.tenants = tenants
    await node.is_used()
    await node.ask("stranger", 3)
    assert node.named() == [("stranger", "team/x", 3)]
    for _ in range(2):  # the pod is gone by then, and with it its name
        await node.begin_again()
        assert node.named() == [("stranger", "team/x", 3)]
    await node.ask("stranger", 2)
    await node.openers.write(ends=True)
    await node.begin_again()
    assert node.named() == [("stranger", "team/x", 5)]
    assert await node.rows() == [("stranger", 3, True, False), ("stranger", 5, True, True)]


async def test_attempts_while_no_service_ran_keep_their_times(node):
    """They are read after the start, not always in their order, and perhaps after the end of the tenancy."""
    world, device = node.world, node.world.uuids[0]
    tenant = await node.is_used()
    await node.ask("stranger", refused=True)
    record = world.life.ledger.records[device]
    await world.die()
    await asyncio.sleep(120)
    world.node.end_container(tenant)
    node.live, killed = LiveOpeners(lambda: world.node.now().wall), world.node.now()
    node.live.began(record, open_to(record), killed.uptime)
    await world.start()
    await world.clean(device)
    now = world.life.ledger.records[device]
    node.live.began(now, open_to(now), world.node.now().uptime)
    node.openers = OpenAttemptRows(world.context, node.live)
    for ago, pid, refused in ((60.0, 8, 0), (90.0, 7, 1)):
        attempt = Opener("stranger", "", "python", pid, False, 1, refused, killed.wall - ago, killed.wall - ago)
        node.live.add(device, attempt, ignored=False, at=killed.uptime - ago)
        await node.openers.write()
    await node.ask("stranger", refused=True)
    await node.openers.write()
    assert await node.rows() == [
        ("stranger", 1, True, False), ("stranger", 2, True, False), ("stranger", 3, True, True),
        ("stranger", 1, False, False),
    ]  # fmt: skip
    opener = (await node.attempts())[2].opener
    assert (killed.wall - opener.last, opener.pid, opener.refused) == (60.0, 8, 2)
    assert len({it.tenancy for it in await node.attempts()}) == 2


async def test_no_row_exempts_what_happened_before_the_exemption(node):
    await node.is_used()
    await node.ask("monitor", 3)
    await node.ask("monitor", 2, exempt=True)
    await node.ask("monitor", 4)
    await node.openers.write(ends=True)
    texts = [it.text for it in (await node.world.life.reporter.history.entries("0", 0.0, 3)).entries]
    assert [("which the policy exempted" in it, "while somebody else had it" in it) for it in texts] == [
        (False, True), (True, False), (False, True),
    ]  # fmt: skip
    assert [re.findall("at least [0-9]+", it) for it in texts] == [["at least 3"], ["at least 2"], ["at least 7"]]


async def test_a_flood_does_not_fill_the_ledger(node):
    for device in range(4):
        for number in range(500):
            node.attempt(node.world.uuids[device], f"pod-{number}")
            if number % 50 == 0:
                await asyncio.sleep(1)
    await asyncio.sleep(2)
    named = [it for it in await node.rows() if it[0].startswith("pod-")]
    assert (len(named), len(await node.rows())) == (20, 24)
    await asyncio.sleep(700)
    assert len(await node.rows()) == 36
    await node.openers.write(ends=True)
    assert [it for it in await node.left_out() if it[2]] == [(492, 492, True)] * 4


async def test_who_has_no_row_is_counted_in_one(node):
    for number in range(30):
        await node.ask(f"pod-{number}")
    assert await node.left_out() == [(1, 1, False)]
    await node.begin_again()
    assert await node.left_out() == [(1, 1, False)], "the service was killed"
    await node.ask("pod-0")
    await node.ask("pod-29")
    await node.openers.write(ends=True)
    await node.begin_again()
    assert await node.left_out() == [(1, 1, False), (1, 1, False)], "of each life"


async def test_a_period_ends_with_how_many_had_no_row(node):
    for number in [*range(30), *range(30)]:
        await node.ask(f"pod-{number}", 2 if number == 20 else 1)
    await node.world.tenancy(node.world.uuids[0])
    await asyncio.sleep(2)
    assert await node.left_out() == [(1, 1, False), (22, 2 * 23, True)]
    assert [it.held for it in await node.attempts()] == [False] * len(await node.attempts())


async def test_what_happens_on_a_full_disk_is_written_afterwards(node):
    await node.ask("stranger")
    node.world.life.disk.full = True
    await node.ask("other")
    await asyncio.sleep(60)
    node.world.life.disk.full = False
    await asyncio.sleep(10)
    assert [row[0] for row in await node.rows()] == ["stranger", "other"]
