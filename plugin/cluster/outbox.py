"""Events that wait to be sent. Pure: names and times are parameters.

The number of waiting events is bounded: the oldest one is dropped and counted. While an event waits, a repetition of
it takes its place, so that one device cannot displace the last event of another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plugin.cluster.node_report import NodeEvent

MOST_WAITING = 64


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """One Event to create: its name, what happened, and when."""

    name: str
    event: NodeEvent
    at: float


class Outbox:
    """The events that wait, in the order in which they have to be sent."""

    def __init__(self, name: Callable[[], str], most: int = MOST_WAITING) -> None:
        """``name`` makes a name that no Event has."""
        self._name = name
        self._most = most
        self._waiting: dict[tuple[str, str, str], PendingEvent] = {}
        self.dropped = 0

    def put(self, event: NodeEvent, now: float) -> None:
        """Add an event; may drop the oldest one."""
        key = event.device, event.reason.value, event.ailment
        self._waiting.pop(key, None)
        self._waiting[key] = PendingEvent(self._name(), event, now)
        if len(self._waiting) > self._most:
            del self._waiting[next(iter(self._waiting))]
            self.dropped += 1

    def first(self) -> PendingEvent | None:
        """The event that has waited longest."""
        return next(iter(self._waiting.values()), None)

    def sent(self, event: PendingEvent) -> None:
        """The API server has this event; a repetition since then still has to be sent."""
        self._waiting = {key: waiting for key, waiting in self._waiting.items() if waiting is not event}

    def waiting(self) -> int:
        """The number of events to send."""
        return len(self._waiting)
