"""Events that wait to be sent, and those that were sent: an event that repeats is counted, not sent again.

The number of waiting events is bounded: the oldest one is dropped and counted. Pure: names and times are parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from plugin.cluster.node_report import NodeEvent

MOST_WAITING = 64
WINDOW = 600.0  # seconds within which the same event counts as a repetition

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """One Event: what happened, how often so far, and how often according to the API server."""

    name: str
    event: NodeEvent
    first: float
    last: float
    count: int = 1
    sent: int = 0

    @property
    def key(self) -> Key:
        """Two events with the same key are repetitions."""
        return self.event.device, self.event.reason.value, self.event.ailment


class Outbox:
    """The events of the last minutes, in the order in which they have to be sent."""

    def __init__(self, name: Callable[[], str], most: int = MOST_WAITING) -> None:
        """``name`` makes a name that no Event has."""
        self._name = name
        self._most = most
        self._events: dict[Key, PendingEvent] = {}
        self.dropped = 0

    def put(self, event: NodeEvent, now: float) -> None:
        """Add an event; may drop the oldest one."""
        self._forget(now)
        fresh = PendingEvent(self._name(), event, now, now)
        known = self._events.pop(fresh.key, None)
        pending = fresh if known is None else replace(known, event=event, last=now, count=known.count + 1)
        self._events[fresh.key] = pending
        waiting = self._waiting()
        if len(waiting) > self._most:
            self._drop(waiting[0])

    def first(self) -> PendingEvent | None:
        """The event that has waited longest."""
        return next(iter(self._waiting()), None)

    def sent(self, event: PendingEvent) -> None:
        """The API server has this count; repetitions since then still have to be sent."""
        if (present := self._present(event)) is not None:
            self._events[event.key] = replace(present, sent=event.count)

    def lost(self, event: PendingEvent) -> None:
        """The API server has deleted the Event: send it again under a new name."""
        if (present := self._present(event)) is not None:
            self._events[event.key] = replace(present, name=self._name(), sent=0)

    def waiting(self) -> int:
        """The number of events to send."""
        return len(self._waiting())

    def _waiting(self) -> list[PendingEvent]:
        return [event for event in self._events.values() if event.sent < event.count]

    def _present(self, event: PendingEvent) -> PendingEvent | None:
        present = self._events.get(event.key)
        return present if present is not None and present.name == event.name else None

    def _drop(self, event: PendingEvent) -> None:
        self.dropped += event.count - event.sent
        if event.sent:
            self._events[event.key] = replace(event, count=event.sent)
        else:
            del self._events[event.key]

    def _forget(self, now: float) -> None:
        complete = [event for event in self._events.values() if event.sent == event.count]
        for event in complete:
            if not 0 <= now - event.last <= WINDOW:
                del self._events[event.key]
