"""A day of noise: what may go wrong with the devices of a node, drawn at random and written down beforehand.

Time is cut into slots in which a device has one thing to suffer, begun early enough that all that heals by itself has
healed at the end of it: how it must stand then does not hang on who was quicker. What is to be counted comes long
enough before anything that has the device judged anew.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

SLOT = 1200.0  # seconds
SHORT, LONG = (3.0, 8.0), (260.0, 300.0)  # what one look sees at most, and what none can miss, restarts included

APPLICATION = (13, 31, 43, 94, 45)
HARMLESS = (63, 92)
FATAL = (48, 79, 95, 119, 64, 109)
UNHEARD_OF = (999, 162)
FOR_SUPPORT = (125, 61)
ALARMING = (*FATAL, *FATAL, *UNHEARD_OF, *FOR_SUPPORT)
PASSING = ("lost", "hangs", "links", "fabric", "reboot-required", "pcie", "heat", "reset-fails")
LASTING = ("remap-failed", "sram")
AT_ONCE = ("ecc", "remap-pending", "reset-required", "leak")
MAY_STAY = ("lost", "fabric", "heat")  # over several slots


@dataclass(frozen=True)
class Event:
    """One thing that happens, to one device or to the node."""

    at: float
    kind: str
    device: str = ""
    what: str = ""
    codes: tuple[int, ...] = ()


class Noise:
    """Draws the events of a day. ``pair`` are the devices that are reset together: one at a time has its turn."""

    def __init__(self, seed: int, devices: tuple[str, ...], pair: tuple[str, ...], loud: int) -> None:
        """``loud``: how many errors a tenant causes at most in one of its bursts."""
        self._chance = random.Random(seed)  # noqa: S311 - to be the same every time is its purpose
        self._devices = devices
        self._pair = pair
        self._loud = loud
        self._guests: set[str] = set()
        self._staying: dict[str, str] = {}

    def day(self, slots: int) -> list[Event]:
        """Everything, in order; each slot ends with its name. One slot has a reboot, every fifth a kill."""
        events: list[Event] = []
        for slot in range(slots):
            began = slot * SLOT
            found = self._reboot() if slot == slots * 2 // 3 else self._slot(killed=slot % 5 == 3)
            events += sorted((self._shifted(it, began) for it in found), key=lambda it: it.at)
            events.append(Event(began + SLOT, "slot", what=str(slot)))
        return events

    @staticmethod
    def _shifted(event: Event, began: float) -> Event:
        return Event(began + event.at, event.kind, event.device, event.what, event.codes)

    def _between(self, least: float, most: float) -> float:
        return self._chance.uniform(least, most)

    def _reboot(self) -> Iterator[Event]:
        self._guests.clear()
        yield Event(self._between(100, 200), "reboot")

    def _slot(self, *, killed: bool) -> Iterator[Event]:
        early = killed and self._chance.random() < 0.5
        if killed:
            at = self._between(10, 100) if early else self._between(720, 780)
            yield Event(at, "kill")
            yield Event(at + self._between(0, 60), "start")
        idle = self._chance.choice(self._pair) if self._pair else ""
        for device in self._devices:
            if device != idle:
                yield from self._episode(device, early=early)

    def _episode(self, device: str, *, early: bool) -> Iterator[Event]:
        if device in self._staying and self._chance.random() < 0.5:
            yield Event(self._between(60, 200), "over", device, self._staying.pop(device))
        elif early and device not in self._guests:
            yield from self._fault(device)
        elif not early:
            weights = {self._tenancy: 55, self._harmless: 12, self._fault: 15, self._repeats: 4, self._person: 14}
            busy = device in self._guests
            [kind] = [self._tenancy] if busy else self._chance.choices(list(weights), list(weights.values()))
            yield from kind(device)

    def _tenancy(self, device: str) -> Iterator[Event]:
        """A tenant whose program fails all the time; and now and then the device under it does."""
        if device not in self._guests:
            yield Event(self._between(0, 20), "arrives", device)
        self._guests.add(device)
        for _ in range(self._chance.randrange(4)):
            codes = self._chance.choices(APPLICATION, k=self._chance.randint(1, self._loud))
            yield Event(self._between(60, 500), "xids", device, codes=tuple(codes))
        yield from self._few(device)
        if self._chance.random() < 0.2:
            yield from self._fault_in_use(device)
        if device in self._pair or self._chance.random() < 0.85:
            self._guests.discard(device)
            yield Event(self._between(690, 700), "leaves", device)

    def _fault_in_use(self, device: str) -> Iterator[Event]:
        at, what = (
            self._between(600, 610),
            self._chance.choice((*AT_ONCE, *PASSING, "bad-memory", "xids", "quarantine")),
        )
        match what:
            case "xids":
                yield Event(at, "xids", device, codes=(13, self._chance.choice(ALARMING)))
            case "quarantine":
                yield Event(at, "quarantine", device)
            case _:
                yield Event(at, "begins", device, what)
        if what in PASSING:
            yield Event(at + 70, "over", device, what)
        if self._chance.random() < 0.4:  # and then another one
            yield Event(at + 30, "xids", device, codes=(13, self._chance.choice(ALARMING)))

    def _harmless(self, device: str) -> Iterator[Event]:
        yield from self._few(device)
        at = self._between(60, 480)
        what = self._chance.choice(("hangs", "leak", "announced"))
        match what:
            case "hangs":  # so shortly that no two looks can meet it
                yield Event(at, "begins", device, "short hang")
                yield Event(at + self._between(*SHORT), "over", device, "short hang")
            case "leak":  # long after what is to be counted
                yield Event(self._between(620, 700), "begins", device, "leak")
            case _:
                yield Event(at, "announced", device, "none", codes=(154,))

    def _few(self, device: str) -> Iterator[Event]:
        """Fewer of each harmless code than are too many."""
        for code in HARMLESS:
            for _ in range(self._chance.randrange(5)):
                yield Event(self._between(60, 500), "xids", device, codes=(code,))

    def _repeats(self, device: str) -> Iterator[Event]:
        """One code too often: at once, or in two goes of which the first is counted."""
        code, first = self._chance.choice(HARMLESS), self._chance.choice((0, 2, 4))
        if first:
            yield Event(self._between(0, 20), "xids", device, codes=(code,) * first)
        yield Event(self._between(150, 200), "xids", device, codes=(code,) * self._chance.randint(5 - first, 8))

    def _fault(self, device: str) -> Iterator[Event]:
        at = self._between(0, 40)
        what = self._chance.choice(("xids", "xids", "announced", *AT_ONCE, *PASSING, *LASTING))
        match what:
            case "xids":
                codes = (*self._chance.choices(APPLICATION, k=2), self._chance.choice(ALARMING))
                yield Event(at, "xids", device, codes=codes)
            case "announced":
                yield Event(at, "announced", device, "reset_gpu", codes=(154,))
            case "leak":
                yield Event(self._between(620, 700), "begins", device, what)
            case "reset-fails":
                yield Event(at, "begins", device, what)
                yield Event(at, "xids", device, codes=(48,))
                yield Event(at + self._between(*LONG), "over", device, what)
            case _:
                yield from self._condition(device, at, what)

    def _condition(self, device: str, at: float, what: str) -> Iterator[Event]:
        yield Event(at, "begins", device, what)
        if what == "lost":
            yield Event(at, "xids", device, codes=(79,))  # not reported before the service is back
        may_stay = what in MAY_STAY and device not in (*self._pair, *self._staying)
        if may_stay and self._chance.random() < 0.4:
            self._staying[device] = what
        elif what in PASSING:
            yield Event(at + self._between(*LONG), "over", device, what)

    def _person(self, device: str) -> Iterator[Event]:
        """Somebody takes it out or brings it back, with or without having looked after it."""
        deed = self._chance.choice(("quarantine", "reinstate", "reinstate", "excuse"))
        if deed != "quarantine" and self._chance.random() < 0.7:
            yield Event(0.0, "repaired", device)
        yield Event(self._between(1, 40), deed, device)
