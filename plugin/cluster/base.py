"""What the reporter needs of an API server, and how that fails. The port has one implementation, ``apiserver``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from plugin.cluster.judging import Condition
from plugin.cluster.outbox import PendingEvent


class ObjectKind(Enum):
    """Why a call failed: it decides what comes next."""

    AWAY = "away"  # nobody answered, or nobody sensible: tried again soon, with growing pauses
    BUSY = "busy"  # it said when to come back
    STALE = "stale"  # somebody else wrote meanwhile, or it is there already
    FORBIDDEN = "forbidden"  # a person has to mend that: tried again now and then
    MISSING = "missing"  # what was asked for is not there
    REFUSED = "refused"  # it will not take what we say: saying it again does not help


class Failure(Exception):
    """A call that came to nothing, in words for the log."""

    def __init__(self, kind: ObjectKind, message: str, retry_after: float | None = None) -> None:
        """Keep the kind beside the words; ``retry_after`` is what the API server asked for, in seconds."""
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after = retry_after


class Unusable(Exception):
    """There is no client to be had: the message says why."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """The node as the API server has it, as far as we care."""

    uid: str
    version: str
    condition: Condition | None
    taints: int = 0  # how many there are, of whomever
    taint: int | None = None  # the place of ours among them


class Server(Protocol):
    """The API server, for one node. Every call ends within a bound, with an answer or a Failure."""

    async def read(self) -> ClusterNode:
        """The node as it is now."""

    async def put_condition(self, condition: Condition) -> ClusterNode:
        """Set our condition, whatever it was."""

    async def put_taint(self, node: ClusterNode) -> None:
        """Add our taint, if nobody changed the node since it was read."""

    async def drop_taint(self, node: ClusterNode) -> None:
        """Remove our taint, if nobody changed the node since it was read."""

    async def post(self, letter: PendingEvent, uid: str) -> None:
        """Make an Event."""

    async def bump(self, letter: PendingEvent) -> None:
        """Say of an Event that it happened again."""

    async def close(self) -> None:
        """Let go of all connections."""
