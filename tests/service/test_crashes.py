"""One long story and every way to interrupt it: a kill after each row, a kill in each step, a failure of each write.

In the story a pod leaves a process behind, a fast path escalates, and a device with bad memory is quarantined, fails
a probation and is reinstated. After each interruption the service starts again, and the truth checks every deed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import ClassVar

import pytest

from ground.errors import AutoclaveError, Reason
from scrubber.core import events as ev
from scrubber.core.model import Evicted, State, Step
from tests.service.disk import Disk
from tests.service.pretend_worker import TAKES, PretendWorker
from tests.service.virtual import VirtualLoop
from tests.service.world import World

A_WHILE = 5.0
LONGEST = 10_000.0  # seconds of virtual time in which every story ends
INTERVAL = 3.0  # of the monitor: what it does now and then is not the point here


async def insist(ask: Callable[[], Awaitable[object]]) -> None:
    """Ask until the answer is yes, as kubelets and operators do."""
    while True:
        try:
            await ask()
        except AutoclaveError as error:
            if error.reason is Reason.NOT_QUARANTINED:
                return  # an earlier request ended the quarantine, and only its scrub could not be written down
            await asyncio.sleep(1.0)
        else:
            return


async def story(world: World) -> None:
    """One history that contains every kind of job."""
    one, two = world.uuids
    await world.start()
    await insist(lambda: world.acquire("ann", one, two, announced=True))
    await insist(lambda: world.begin("ann", one))
    world.node.end_container("ann", leaving=True)
    world.node.gpus[two].crashes = True
    await insist(lambda: world.tenant_requests.release([two]))
    await insist(lambda: world.operator_requests.scrub(two, None))
    await insist(lambda: world.acquire("bob", one))
    world.run("bob", one)
    await world.reach(one, State.IN_USE)
    await world.reach(two, State.QUARANTINED)
    world.node.heal()
    world.node.gpus[one].bad_memory = True
    await insist(lambda: world.operator_requests.reinstate(two, "mended", "ops"))
    await world.reach(two, State.CLEAN)
    await world.reach(one, State.QUARANTINED)
    world.node.heal()
    await insist(
        lambda: world.operator_requests.reinstate_without_proof(one, "another memory", "ops")
    )  # it waits for a person
    await world.reach(one, State.CLEAN)


def play(world: World, seconds: float = LONGEST) -> None:
    """The story, until it is over, the service was killed, or the time is up."""
    telling = world.spawn(story(world))
    while not telling.done() and not (world.up and world.life.disk.dead) and world.loop.time() < seconds:
        world.loop.advance(min(A_WHILE, seconds - world.loop.time()))
    assert telling.done() or world.life.disk.dead or seconds < LONGEST, "the story does not end"
    if telling.done() and not world.life.disk.dead:
        telling.result()


def recover(world: World, *, lingering: bool = False) -> None:
    """Killed and started again: what was out is out, what is believed clean is clean, and in the end all is well."""
    loop, out = world.loop, {device for device, it in world.truth.records.items() if it.health.quarantine}
    loop.run_until_complete(world.die(lingering=lingering))
    loop.run_until_complete(world.start(watching=False))
    for device, record in world.life.ledger.records.items():
        gpu = world.node.gpus[device]
        assert not (device in out and record.health.quarantine is None), f"{device} came out of quarantine by a kill"
        assert record.state is not State.CLEAN or gpu.blocks == [None] * len(gpu.blocks), f"{device} is believed clean"
    loop.advance(0.0)
    world.check()
    loop.run_until_complete(world.die())
    loop.run_until_complete(world.heal())


def arm(disk: Disk, dies_after: int | None = None, fails_at: int | None = None) -> None:
    disk.dies_after, disk.fails_at = dies_after, fails_at


def close(world: World) -> None:
    if world.up:
        world.loop.run_until_complete(world.die())
    world.loop.close()
    world.close()


class Noted(PretendWorker):
    """Notes when it begins which step."""

    begun: ClassVar[list[tuple[float, Step]]] = []

    async def do(self, step, *rest):
        self.begun.append((self.node.loop.time(), step))
        return await super().do(step, *rest)


@cache
def reference() -> World:
    """The story without an interruption, run once."""
    world = World(VirtualLoop(), interval=INTERVAL, worker=Noted)
    play(world)
    close(world)
    return world


def kinds(world: World) -> set[str]:
    return {type(entry.event).__name__ for entry in world.truth.entries}


@pytest.fixture
def thinned(request) -> Callable[[int], int]:
    """The step from one cut to the next: `make test` leaves some out, the night none."""
    return lambda step: 1 if request.config.getoption("--night") else step


def test_the_story_contains_every_kind_of_event():
    wanted = {"Escalated", "Quarantined", "ProbationStarted", "ScrubPassed", "Granted", "PutInUse", "Released"}
    assert wanted <= kinds(reference())
    assert reference().truth.violations == []
    steps = [entry.event for entry in reference().truth.entries if isinstance(entry.event, ev.StepsRecorded)]
    found = [result.findings for it in steps for result in it.results]
    assert any(isinstance(it, Evicted) and it.terminated for it in found)


def test_a_kill_after_any_row_breaks_no_promise(thinned):
    rows = len(reference().truth.entries)
    assert rows > 40
    for row in range(1, rows + 1, thinned(3)):
        world = World(VirtualLoop(), interval=INTERVAL, arm=partial(arm, dies_after=row))
        play(world)
        assert len(world.truth.entries) in (row, row + 1)  # two grants are one write, as are the steps and their proof
        recover(world)
        close(world)


@pytest.mark.parametrize("lingering", [False, True], ids=["", "a worker lingers"])
def test_a_kill_within_any_step_breaks_no_promise(lingering, thinned):
    reference()
    assert len(Noted.begun) > 30
    for at, step in Noted.begun[:: thinned(2)]:
        world = World(VirtualLoop(), interval=INTERVAL)
        play(world, at + TAKES[step] / 2)
        recover(world, lingering=lingering)
        close(world)


def test_any_failed_write_breaks_no_promise(thinned):
    for write in range(1, len(reference().truth.entries) + 1, thinned(3)):
        world = World(VirtualLoop(), interval=INTERVAL, arm=partial(arm, fails_at=write))
        play(world)
        world.check()
        recover(world)
        close(world)
