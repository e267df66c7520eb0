"""What the reporter needs of an API server, and how calls fail. ``apiserver`` implements the port."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from plugin.cluster.node_report import Condition, PendingEvent


class FailureKind(Enum):
    """Why a call failed, which decides when the next attempt follows."""

    AWAY = "away"  # no valid answer: retried soon, with growing pauses
    BUSY = "busy"  # the API server says when to retry
    STALE = "stale"  # another client changed the object meanwhile, or it exists already
    FORBIDDEN = "forbidden"  # an operator has to change rights or credentials: retried after long pauses
    MISSING = "missing"  # the object does not exist
    REFUSED = "refused"  # the API server refuses the object: a retry does not help


class Failure(Exception):
    """A call that failed, with a message for the log."""

    def __init__(self, kind: FailureKind, message: str, retry_after: float | None = None) -> None:
        """``retry_after`` is the pause that the API server asks for, in seconds."""
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after = retry_after


class Unusable(Exception):
    """The plugin cannot make a client; the message says why."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """The fields of the Node that the reporter needs."""

    uid: str
    version: str
    condition: Condition | None
    taints: int = 0  # the number of all taints
    taint: int | None = None  # the index of our taint


class Server(Protocol):
    """The API server, for one node. Every call ends within a bound, with an answer or a Failure."""

    async def read(self) -> ClusterNode:
        """The Node as it is now."""

    async def put_condition(self, condition: Condition) -> ClusterNode:
        """Set our condition."""

    async def put_taint(self, node: ClusterNode) -> None:
        """Add our taint, unless the Node has changed since it was read."""

    async def drop_taint(self, node: ClusterNode) -> None:
        """Remove our taint, unless the Node has changed since it was read."""

    async def create_event(self, event: PendingEvent, uid: str) -> None:
        """Create an Event, unless it exists because the answer to an earlier call was lost."""

    async def close(self) -> None:
        """Close all connections."""
