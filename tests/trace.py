"""What happened in an arena, in one form for all of them: a failure prints its moves and their effects in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MOVE, NODE, ROW, FOUND = "move", "node", "row", "FOUND"  # the arena; its programs; the service; the judge


@dataclass(frozen=True)
class Event:
    """Something that happened at a time of the arena's clock. Words that cost much are made when they are read."""

    at: float
    kind: str
    words: str | Callable[[], str]
    device: str = ""

    def __str__(self) -> str:
        words = self.words if isinstance(self.words, str) else self.words()
        return f"{self.at:10.2f} {self.kind:5} {self.device}{' ' * bool(self.device)}{words}"


class Trace:
    """All events of one history."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.events: list[Event] = []
        self.clock = clock

    def say(self, kind: str, words: str | Callable[[], str], device: str = "") -> None:
        """Something happens now."""
        self.events.append(Event(self.clock(), kind, words, device))

    def story(self, device: str = "") -> str:
        """The events in their order: all of them, or those that may concern a device."""
        events = (it for it in self.events if not device or it.device in ("", device))
        return "\n".join(map(str, sorted(events, key=lambda it: it.at)))
