"""A random judge of closing receipts: what each says of others is what the kernel let them do, whenever they came.

Others open the GPU at any moment between a look, its row, a scrub and the end of a tenancy: also before each answer of
the kernel, and while a row is written. A monitor, whose opens the policy ignores, opens it, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from ground.errors import NotReady
from scrubber.core import events as ev
from scrubber.core.acquire import ForJob
from scrubber.core.events import LedgerEntry
from scrubber.core.guarded import Guarded
from scrubber.core.model import DeviceNumber, Holder, NodeKind, State
from scrubber.core.use_counter import FenceReading
from tests.ledger.memory_store import MemoryStore
from tests.service.kernel import Kernel
from tests.service.node import number_of
from tests.service.world import World

HISTORIES, TENANCIES, OPENS = 20, 3, 12
MONITOR = 77  # its pid
FOREIGN, IGNORED, REFUSED = "foreign", "ignored", "refused"


@dataclass(frozen=True)
class Opened:
    """Somebody else opened the GPU, or was refused."""

    how: str


class OwnerGone:
    """The last process of the owner has ended."""


class Writes:
    """A row is about to be written: its count was taken."""


class Others:
    """They open the GPU of a world, and everything that happens to it is told in order."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.left = 0
        self.history: list[Opened | OwnerGone | Writes | ev.Event] = []
        self.kernel: Kernel | None = None
        self.number = DeviceNumber(NodeKind.CHARACTER, 0, 0)

    def may_come(self) -> None:
        """Perhaps one of them opens it now."""
        if self.kernel is None or not self.left or self.dice.random() < 0.9:
            return
        self.left -= 1
        who = self.dice.choice(("program", "pod", "monitor", "monitor"))
        group = self.kernel.group("stranger" if who == "pod" else None)
        let_in = self.kernel.opens(self.number, group, MONITOR if who == "monitor" else 66)
        self.history.append(Opened(REFUSED if not let_in else IGNORED if who == "monitor" else FOREIGN))

    async def keep_coming(self) -> None:
        """Between any two turns of the loop."""
        while True:
            for _ in range(self.dice.randrange(40)):
                await asyncio.sleep(0)
            self.may_come()
            await asyncio.sleep(self.dice.choice((0.0, 0.001, 0.3)))


def rows_wait(world: World, others: Others) -> None:
    """Each row waits for the lock and the disk, and others come meanwhile."""
    append = world.life.ledger.append

    async def waits(op: str, *events: tuple[str, ev.Event], **more: Any) -> None:  # noqa: ANN401 - passed on
        await asyncio.sleep(others.dice.choice((0.0, 0.001, 0.1)))
        others.may_come()
        await append(op, *events, **more)

    world.life.ledger.append = waits  # type: ignore[method-assign] # for this life


class Store(MemoryStore):
    """Others come while it writes."""

    def __init__(self, others: Others) -> None:
        super().__init__()
        self._others = others

    def append(self, drafts: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
        """Write all rows."""
        self._others.history.append(Writes())
        self._others.may_come()
        entries = super().append(drafts)
        self._others.history += [entry.event for entry in entries]
        return entries


async def has_it(world: World, tenant: str, others: Others) -> None:
    """A pod or a job gets the GPU, uses it, and ends. The service may be killed meanwhile."""
    dice, kernel, [device] = others.dice, world.node.kernel, world.uuids
    assert kernel is not None
    job, group = dice.random() < 0.5, kernel.group(tenant)
    while True:
        try:
            if job:
                await world.tenant_requests.acquire([device], ForJob(tenant, group))
                world.run(tenant, device)
            else:
                await world.acquire(tenant, device, announced=True)
                await world.begin(tenant, device)
            break
        except NotReady:
            await asyncio.sleep(1.0)
    await asyncio.sleep(dice.choice((0.0, 0.2, 3.0)))
    if dice.random() < 0.3:
        await world.die()
        await asyncio.sleep(dice.choice((0.0, 1.0)))
        await world.start()
        rows_wait(world, others)
    await asyncio.sleep(dice.choice((0.0, 0.2, 3.0)))
    world.node.end_container(tenant)
    kernel.removed.add(tenant)


def judge(history: Sequence[Opened | OwnerGone | Writes | ev.Event]) -> int:
    """Compare each reading in a row, and each closing receipt, with what was done. How many receipts there are."""
    closed = granted = read = gone = wiped = 0
    done = [Counter[str]()]  # before each entry
    for it in history:
        done.append(done[-1] + Counter([it.how] if isinstance(it, Opened) else ()))

    def foreign(first: int, last: int) -> int:
        return done[last][FOREIGN] - done[first][FOREIGN]

    def taken(reading: FenceReading | None, row: int) -> int:
        """When this was true, at the latest; it must have been."""
        assert reading is not None
        said = Counter({FOREIGN: reading.uses, IGNORED: reading.ignored, REFUSED: reading.refused})
        return max(at for at in range(row + 1) if done[at] == said)

    for at, event in enumerate(history):
        match event:
            case ev.Granted(fence=reading):
                granted, read = at, taken(reading, at)
                assert not foreign(read, begun(history, at)), f"{event}: somebody has come since the look"
            case OwnerGone():
                gone = at
            case ev.ScrubPassed(fence=reading):
                wiped = at
                assert not foreign(taken(reading, at), begun(history, at)), f"{event}: somebody has come since the look"
            case ev.TenancyClosed(ended, _, until_wiped):
                in_it, after = said(ended.guarded), said(until_wiped)
                assert foreign(granted, gone) <= in_it[FOREIGN], f"{event}: not told of the tenancy"
                assert foreign(granted, begun(history, wiped)) <= (in_it + after)[FOREIGN], f"{event}: not told"
                assert in_it + after <= done[wiped] - done[read], f"{event}: nobody has done it"
                closed += 1
            case _:
                pass
    return closed


def begun(history: Sequence[object], row: int) -> int:
    """When a row was about to be written."""
    return max(at for at in range(row) if isinstance(history[at], Writes))


def said(guarded: Guarded) -> Counter[str]:
    """What the fence says of others, which it must know."""
    assert (guarded.why, guarded.gaps) == ("", 0)
    return Counter({FOREIGN: guarded.let_through, IGNORED: guarded.ignored, REFUSED: guarded.refused})


async def play(begin, mode: str, seed: int) -> int:
    """One history."""
    dice = Random(seed)  # noqa: S311 - a game
    others = Others(dice)
    world: World = await begin(
        policy=f"defaults: {{fence: {{mode: {mode}}}}}", gpus=1, fenced=True, kept=Store(others), guilty=True, seed=seed
    )
    world.bystanders[MONITOR] = Holder(MONITOR, 0.0, "monitor", None)
    kernel = others.kernel = world.node.kernel
    assert kernel is not None
    others.number, kernel.in_between = number_of(world.node.gpus[world.uuids[0]]), others.may_come
    rows_wait(world, others)
    coming = asyncio.create_task(others.keep_coming())
    for number in range(TENANCIES):
        others.left = OPENS
        await has_it(world, f"tenant-{number}", others)
        others.history.append(OwnerGone())
        if world.record(world.uuids[0]).tenancy.until_release:
            await world.tenant_requests.release(world.uuids)
        await world.reach(world.uuids[0], State.CLEAN)
    coming.cancel()
    await world.die()
    return judge(others.history)


@pytest.mark.parametrize("mode", ["hold", "watch", "refuse"])
async def test_a_closing_receipt_says_what_others_did(begin, mode):
    for seed in range(HISTORIES):
        assert await play(begin, mode, seed) >= TENANCIES, f"seed {seed}"
