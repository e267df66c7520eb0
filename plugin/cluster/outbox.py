"""Events that wait to be told, and those that were: the same thing again is counted, not told twice.

At most so many wait; the oldest goes first when there is no more room, and is counted. Pure: names and times come in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from plugin.cluster.judging import NodeEvent

MOST_WAITING = 64
WINDOW = 600.0  # seconds after the last time within which the same thing counts as one more of it

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """One Event: what happened, how often by now, and how much of that the API server was told."""

    name: str
    happening: NodeEvent
    first: float
    last: float
    count: int = 1
    told: int = 0

    @property
    def key(self) -> Key:
        """What makes two happenings the same thing."""
        return self.happening.device, self.happening.code.value, self.happening.ailment


class Outbox:
    """All letters of the last while, in the order in which they have to go out."""

    def __init__(self, name: Callable[[], str], most: int = MOST_WAITING) -> None:
        """Empty; ``name`` makes a name that no Event ever had."""
        self._name = name
        self._most = most
        self._letters: dict[Key, PendingEvent] = {}
        self.dropped = 0

    def put(self, happening: NodeEvent, now: float) -> None:
        """One more thing to tell; may push out the oldest one."""
        self._forget(now)
        fresh = PendingEvent(self._name(), happening, now, now)
        known = self._letters.pop(fresh.key, None)
        letter = fresh if known is None else replace(known, happening=happening, last=now, count=known.count + 1)
        self._letters[fresh.key] = letter
        waiting = self._waiting()
        if len(waiting) > self._most:
            self._drop(waiting[0])

    def first(self) -> PendingEvent | None:
        """The one that has waited longest."""
        return next(iter(self._waiting()), None)

    def sent(self, letter: PendingEvent) -> None:
        """The API server knows this much; what happened meanwhile is still to be told."""
        if (present := self._present(letter)) is not None:
            self._letters[letter.key] = replace(present, told=letter.count)

    def lost(self, letter: PendingEvent) -> None:
        """The API server has forgotten it: it is told anew, as another Event."""
        if (present := self._present(letter)) is not None:
            self._letters[letter.key] = replace(present, name=self._name(), told=0)

    def waiting(self) -> int:
        """How many letters have to go out."""
        return len(self._waiting())

    def _waiting(self) -> list[PendingEvent]:
        return [letter for letter in self._letters.values() if letter.told < letter.count]

    def _present(self, letter: PendingEvent) -> PendingEvent | None:
        present = self._letters.get(letter.key)
        return present if present is not None and present.name == letter.name else None

    def _drop(self, letter: PendingEvent) -> None:
        self.dropped += letter.count - letter.told
        if letter.told:
            self._letters[letter.key] = replace(letter, count=letter.told)
        else:
            del self._letters[letter.key]

    def _forget(self, now: float) -> None:
        old = [letter for letter in self._letters.values() if letter.told == letter.count]
        for letter in old:
            if not 0 <= now - letter.last <= WINDOW:
                del self._letters[letter.key]
