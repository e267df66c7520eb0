"""A day of random events on a node: after each slot every device is in its predicted state."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from scrubber.core import events as ev
from scrubber.core.model import AilmentKind, Sign, State, Step
from scrubber.ground.errors import AutoclaveError
from tests.service.asking import healthy
from tests.service.foretold import Fate, Foretold
from tests.service.noise import SLOT, Event, Noise
from tests.service.world import World

DAY, MORNING = 72, 24  # slots
LOUD = 44  # so that a day has about 10,000 events
INTERVAL = 20.0
A_ROUND = INTERVAL + 0.5
A_HUNG_ROUND = 12.0  # by so much devices that hang may keep a round from its end
TOLD = ("xids", "announced", "begins", "quarantine")  # others show at the next scrub
UNSEEN = ("bad-memory", "leak")  # so do these
FLAGS = {
    "lost": "lost", "hangs": "hangs", "short hang": "hangs", "reset-fails": "reset_fails", "bad-memory": "bad_memory",
    "remap-failed": "remap_failed", "remap-pending": "remap_pending", "reset-required": "reset_required",
}  # fmt: skip


class Play:
    """Lets the noise happen to a world, and holds the world against what was foretold."""

    def __init__(self, world: World, foretold: Foretold) -> None:
        self.world = world
        self.foretold = foretold
        self.began = world.loop.time()
        self.guests: dict[str, str] = {}
        self.out: set[str] = set()  # when the service was killed
        self.passed: Counter[str] = Counter()
        self.silenced = 0  # how often a device that was offered was not any more, in time
        self._numbers = itertools.count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []

    async def all(self, events: list[Event]) -> None:
        for event in events:
            await self._until(self.began + event.at)
            offered = {device for device, fate in self.foretold.fates.items() if fate.offered}
            granted = self.foretold.tell(event)
            assert await self._done(event) == granted, f"{event}\n{self._lately(event.device)}"
            self.passed[event.kind] += len(event.codes) or 1
            for device, fate in self.foretold.fates.items():
                if device in offered and not fate.offered:
                    self._remember_to_look(device, event)
            if event.kind == "slot":
                self._compare(f"after slot {event.what}")

    async def _until(self, when: float) -> None:
        while self._agenda and self._agenda[0][0] <= when:
            at, _, look = heapq.heappop(self._agenda)
            await self._pass(at)
            look()
        await self._pass(when)

    async def _pass(self, when: float) -> None:
        if when > self.world.loop.time():
            await asyncio.sleep(when - self.world.loop.time())

    # -- what happens

    async def _done(self, event: Event) -> bool:
        world = self.world
        match event.kind:
            case "slot":
                return True
            case "kill":
                await self._die()
            case "start":
                await world.start()
                self._still_out()
            case "reboot":
                await self._die()
                world.node.reboot()
                self.guests.clear()
                await world.start()
                self._still_out()
            case "arrives" | "quarantine" | "reinstate" | "excuse":
                return await self._asked(event)
            case _:
                self._befalls(event)
        return True

    async def _die(self) -> None:
        self.out = {device for device in self.world.uuids if self.world.record(device).quarantine is not None}
        await self.world.die()

    async def _asked(self, event: Event) -> bool:
        """Whether a request was granted."""
        operations, device = self.world.operations, event.device
        while self.world.node.away:  # noqa: ASYNC110 - the end of a simulated reset has no event; until then no device answers
            await asyncio.sleep(0.1)
        with suppress(AutoclaveError):
            match event.kind:
                case "arrives":
                    self.guests[device] = await self.world.tenancy(device)
                case "quarantine":
                    await operations.quarantine(device, "smells", "ops")
                case "reinstate":
                    await operations.reinstate(device, "looked after", "ops")
                case "excuse":
                    await operations.reinstate_without_proof(device, "it was the cable", "ops")
            return True
        return False

    def _befalls(self, event: Event) -> None:
        gpu = self.world.node.gpus[event.device]
        match event.kind:
            case "xids":
                self.world.node.report(event.device, event.codes)
            case "announced":
                self.world.node.report(event.device, event.codes, event.what)
            case "repaired":
                gpu.remap_failed = gpu.bad_memory = False
                self._sign(event.device, "sram", told=False)
            case "leaves":
                if event.device in self.guests:
                    self.world.node.end_container(self.guests.pop(event.device))
            case _ if event.what in FLAGS:
                setattr(gpu, FLAGS[event.what], event.kind == "begins")
            case _ if event.what == "ecc":
                gpu.ecc += 1
            case _ if event.what == "leak":
                gpu.leaked = 4096
            case _:
                self._sign(event.device, event.what, told=event.kind == "begins")

    def _sign(self, device: str, what: str, *, told: bool) -> None:
        gpu = self.world.node.gpus[device]
        others = tuple(sign for sign in gpu.signs if sign.kind.value != what)
        gpu.signs = (*others, Sign(AilmentKind(what), "so it is")) if told else others

    # -- what must be

    def _remember_to_look(self, device: str, event: Event) -> None:
        """A device that reports a fault may not be offered after its next observation."""
        if not self.world.up or event.kind not in TOLD or event.what in UNSEEN:
            return
        life, told = self.world.life.number, self.world.loop.time()

        def look() -> None:
            if self.world.up and self.world.life.number == life:
                assert not healthy(self.world, device), f"{event}: {device} is still offered\n{self._lately(device)}"
                self.silenced += 1

        def look_or_wait() -> None:
            later = self._delay(told)
            self._later(self.world.loop.time() + later, look) if later else look()

        rounds = 2 if event.what == "hangs" else 1  # one answer that is late is no illness
        self._later(told + rounds * A_ROUND, look_or_wait)

    def _delay(self, since: float) -> float:
        """What devices that hang take of a round's time; one that meets a reset hears nothing of any device."""
        hung = self.world.node.hung_at > since - A_HUNG_ROUND
        began = self.world.node.now().wall - self.world.loop.time() + since
        rows = itertools.takewhile(lambda it: it.at.wall >= began, reversed(self.world.truth.entries))
        reset = any(isinstance(it.event, ev.StepStarted) and it.event.step is Step.RESET for it in rows)
        return A_HUNG_ROUND * hung + A_ROUND * reset

    def _later(self, when: float, look: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._numbers), look))

    def _still_out(self) -> None:
        """A kill or a reboot ends no quarantine."""
        for device, fate in self.foretold.fates.items():
            if device in self.out and (fate.person or fate.wrong & {"lost", "fabric"}):
                assert self.world.state(device) is State.QUARANTINED, self._lately(device)

    def _compare(self, when: str) -> None:
        self.world.check()
        for device, fate in self.foretold.fates.items():
            found = self._standing(device), healthy(self.world, device), self._heard(device)
            foretold = _standing(fate), fate.offered, fate.heard
            assert found == foretold, f"{device} {when}: {fate}\n{self.world.record(device)}\n{self._lately(device)}"

    def _lately(self, device: str) -> str:
        lines = self.world.story(device).splitlines() if device else []
        steps = (" started (", " passed in ")
        return "\n".join([line[:200] for line in lines if not any(step in line for step in steps)][-20:])

    def _standing(self, device: str) -> tuple[str, str]:
        record = self.world.record(device)
        fate = self.foretold.fates[device]
        if record.quarantine is not None:
            kind = "waits for a person" if record.quarantine.next_probe is None else "out"
            return kind, "?" if fate.out == "?" else record.quarantine.ailment.kind.value
        if record.state in (State.GRANTED, State.IN_USE):
            return "in use", "sick" if record.ailment is not None else ""
        return record.state.value, ""

    def _noted(self, device: str) -> list[tuple[float, ev.ErrorsNoted]]:
        """What was counted while it was not out; afterwards that is for the trial to say."""
        noted: list[tuple[float, ev.ErrorsNoted]] = []
        out = False
        for row in (it for it in self.world.truth.entries if it.device == device):
            if isinstance(row.event, ev.Quarantined):
                out = True
            elif isinstance(row.event, (ev.ScrubPassed, ev.Reinstated)):
                out = False
            elif isinstance(row.event, ev.ErrorsNoted) and not out:
                noted.append((row.at.wall, row.event))
        return noted

    def _heard(self, device: str) -> Counter[int]:
        heard: Counter[int] = Counter()
        for _, event in self._noted(device):
            heard.update(dict(event.codes))
        return heard

    def notes_are_few(self) -> None:
        """At most one a minute, however loud a tenant is."""
        for device in self.world.uuids:
            notes = [at for at, _ in self._noted(device)]
            assert all(two - one >= 60.0 for one, two in itertools.pairwise(notes))


def _standing(fate: Fate) -> tuple[str, str]:
    if fate.out:
        return ("waits for a person" if fate.person else "out"), fate.out
    if fate.used:
        return "in use", "sick" if fate.sick else ""
    return "clean", ""


async def settle(play: Play) -> None:
    """With every cause gone, what may comes back by itself, and the rest by a person's word."""
    for device, fate in play.foretold.fates.items():
        for what in tuple(fate.wrong):
            await play.all([Event(play.world.loop.time() - play.began, "over", device, what)])
        await play.all([Event(play.world.loop.time() - play.began, "leaves", device)])
    at = play.world.loop.time() - play.began
    await play.all([Event(at + SLOT, "slot", what="in the end")])
    out = [device for device, fate in play.foretold.fates.items() if fate.person]
    for _ in range(2):  # what was reported meanwhile is judged at the first
        for device in out:
            with suppress(AutoclaveError):
                await (await play.world.operations.reinstate(device, "looked after", "ops")).finished.wait()
    assert {play.world.state(device) for device in play.world.uuids} == {State.CLEAN}


async def live_through(build, seed: int, slots: int) -> Play:
    world = build(gpus=8, interval=INTERVAL, seed=seed)
    await world.start()
    await world.clean()
    events = Noise(seed, world.uuids, world.uuids[-2:], LOUD).day(slots)
    play = Play(world, Foretold(world.uuids))
    await play.all(events)
    play.notes_are_few()
    await settle(play)
    return play


async def test_a_morning_of_noise_ends_as_predicted(build):
    play = await live_through(build, 1, MORNING)
    assert sum(play.passed.values()) > 3_000
    assert play.silenced > 15


@pytest.mark.night
@pytest.mark.parametrize("seed", range(1, 22))
async def test_days_of_noise_end_as_predicted(build, seed):
    play = await live_through(build, seed, DAY)
    if seed == 1:
        assert sum(play.passed.values()) > 10_000
        assert play.silenced > 50
