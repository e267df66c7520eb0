"""Which look at a device is enough for its purpose. One table says it, and the observer obeys.

A search of all processes takes a second on a node where a hundred large ones run. But a look that is too weak hands
out a device in use. So a weaker look needs a row whose condition is known to hold. In all other cases, all processes of
the node are searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from scrubber.core.ailment_traits import AILMENTS, Lasts
from scrubber.core.fencing import OpenTo, open_to
from scrubber.core.model import State
from scrubber.core.record import Record


class Purpose(Enum):
    """Why a device is observed."""

    ROUND = "the monitor asks whether there is anything to do"
    RESERVE = "a pod is to get it, and the start of the pod looks again"
    GRANT = "somebody is to get it, and nobody looks again before the first use"
    START = "a container is about to start on it"
    CHANGE = "a row is to rest on it, such as the end of a tenancy, or a scrub begins or ends"
    STEP = "a scrub goes on, in which a look has found no holder"
    RESET = "it is to be reset"


class Look(Enum):
    """How to look at a device."""

    LIST = "the driver's list of holders"
    FENCE = "the driver's list, and the fence proves that a search would find nobody else"
    SEARCH = "a search of all processes of the node"


class Listed(Enum):
    """What the driver's list says."""

    NOTHING = "the driver was not asked, does not answer, or names a process that was not found"
    UNSURE = "no holder is on the list, and the driver does not say whether memory is in use"
    IGNORED = "only bystanders are on the list"
    NO_HOLDER = "no holder is on the list, and no memory is in use but that of a scrub"
    HOLDER = "a holder is on the list"


@dataclass(frozen=True, slots=True)
class FenceTells:
    """What the fence, and the last search, have shown of a device."""

    counts_all: bool  # whoever opens the device is counted; below a group (``--cgroup-root``), only who is in it
    no_other_user: bool  # the last search found nobody but the owner, and the fence has counted nobody since
    opened: bool  # others have opened the device since the last search; also False where no fence counts
    searched_ago: float = math.inf  # seconds since the end of the last search


NOT_ASKED = FenceTells(counts_all=False, no_other_user=False, opened=True)
"""Nothing is known of the fence. Somebody may have opened the device."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about a device before the look is chosen."""

    record: Record
    listed: Listed
    fence: FenceTells
    owner_alive: bool | None  # None: only a search can tell, or no container is known to own the device

    @property
    def no_holder(self) -> bool:
        """Whether the list names no holder, and explains all memory in use."""
        return self.listed is Listed.NO_HOLDER

    @property
    def no_user(self) -> bool:
        """The same, but bystanders may use it."""
        return self.no_holder or self.listed is Listed.IGNORED

    @property
    def owner_known(self) -> bool:
        """Whether it is known if the owner lives, as far as there is one."""
        return self.owner_alive is not None or self.record.tenancy.container is None

    @property
    def closed(self) -> bool:
        """Whether the fence proves that a search would find nobody, and lets nobody in."""
        return self.no_other_user and open_to(self.record) is OpenTo.SERVICE

    @property
    def no_other_user(self) -> bool:
        """Whether the fence proves that a search would find nobody but the owner.

        A fence that does not count all proves nothing: whom it does not count may have the device.
        """
        return self.fence.counts_all and self.fence.no_other_user

    @property
    def opened(self) -> bool:
        """Whether others have opened the device since the last search.

        If everybody may open it, an opening is not a sign.
        """
        return self.fence.opened and open_to(self.record) is not OpenTo.ALL

    @property
    def kept(self) -> bool:
        """Whether the device was acquired until its release: any container may use it until then."""
        return self.record.tenancy.until_release

    @property
    def stuck(self) -> bool:
        """Whether the device waits for the end of a process, which the driver may no longer list."""
        quarantine = self.record.health.quarantine
        return quarantine is not None and AILMENTS[quarantine.ailment.kind].lasts is Lasts.HELD

    @property
    def idle_owner(self) -> bool:
        """Whether the owner lives, and was admitted by a start, was named by the kubelet, or has no known name."""
        owner = self.record.tenancy.owner
        return self.owner_alive is True and (owner is None or not owner.unannounced)


class LookRow(NamedTuple):
    """For one of these purposes, and in one of these states, the look is enough if the condition holds."""

    purposes: AbstractSet[Purpose]
    states: AbstractSet[State]
    holds: Callable[[Known], bool]
    look: Look
    why: str


A_WHILE, LATELY = 10.0, 60.0  # seconds since a look, or since the end of a search


def _always(_known: Known) -> bool:
    return True


_ANY = frozenset(State)
_TAKEN = {State.GRANTED, State.IN_USE}
_AT_REST = {State.CLEAN, State.GRANTED, State.QUARANTINED}
BY_LIST = {Purpose.ROUND, Purpose.RESERVE, Purpose.GRANT}
_TO_GIVE = {Purpose.RESERVE, Purpose.GRANT}

# The first row that holds says which look is enough. Where none holds, everything is searched.
TABLE = (
    LookRow(
        {Purpose.RESET}, _ANY, _always, Look.SEARCH,
        "it cannot be undone, and it takes the siblings down, too",
    ),
    LookRow(
        {Purpose.STEP}, {State.SCRUBBING}, lambda known: known.no_holder and known.owner_known, Look.LIST,
        "nobody had it when the scrub began, and whoever has come since and uses the memory is on the list",
    ),
    LookRow(
        {Purpose.START, Purpose.CHANGE, *BY_LIST}, _ANY,
        lambda known: known.no_holder and known.closed and known.owner_known, Look.FENCE,
        "nobody had it at the last search, nobody was let in since, and nobody has opened it since",
    ),
    LookRow(
        {Purpose.CHANGE, *BY_LIST}, {State.IN_USE},
        lambda known: known.no_holder and known.no_other_user and known.owner_alive is False and not known.kept,
        Look.FENCE, "the end of the owner closes the fence, and a search follows before anything is overwritten",
    ),
    LookRow(
        BY_LIST, _ANY, lambda known: known.owner_alive is False or not known.owner_known, Look.SEARCH,
        "an owner that has ended may have sent the open device to another process",
    ),
    LookRow(
        {Purpose.GRANT}, _ANY, lambda known: not known.no_other_user, Look.SEARCH,
        "a process that only has it open is on no list",
    ),
    LookRow(
        {Purpose.RESERVE}, _TAKEN, lambda known: not known.no_other_user, Look.SEARCH,
        "to take it from its last owner is a decision, too, and a process that only has it open is on no list",
    ),
    LookRow(
        _TO_GIVE, {State.GRANTED}, lambda known: open_to(known.record) is not OpenTo.SERVICE, Look.SEARCH,
        "whoever is let in is not counted, and may have it open without using memory",
    ),
    LookRow(
        BY_LIST, {State.SCRUBBING}, lambda known: known.listed is not Listed.NOTHING, Look.LIST,
        "its job looks for itself",
    ),
    LookRow(
        BY_LIST, {State.IN_USE}, lambda known: known.opened and known.fence.searched_ago >= A_WHILE, Look.SEARCH,
        "somebody may have it beside its owner. Whoever opens it again and again must not cause a search each time",
    ),
    LookRow(
        BY_LIST, _AT_REST, lambda known: known.opened and not known.stuck, Look.SEARCH,
        "somebody has opened it, and may have it still",
    ),
    LookRow(
        BY_LIST, _ANY, lambda known: known.listed is Listed.HOLDER, Look.LIST,
        "a device with a holder is not handed out, and a scrub begins with another look",
    ),
    LookRow(
        BY_LIST, {State.IN_USE},
        lambda known: known.listed is not Listed.NOTHING and known.idle_owner and known.fence.searched_ago < LATELY,
        Look.LIST, "its owner lives, and is idle or hangs",
    ),
    LookRow(
        BY_LIST, {State.DIRTY, State.UNKNOWN}, lambda known: known.no_user and known.no_other_user, Look.FENCE,
        "nobody had it at the last search, and nobody has opened it since: a scrub may begin",
    ),
    LookRow(
        BY_LIST, {State.GRANTED}, lambda known: known.no_user and known.kept and known.fence.searched_ago < LATELY,
        Look.LIST, "whoever has acquired it may have it open, and uses no memory so far",
    ),
    LookRow(
        BY_LIST, _AT_REST, lambda known: known.no_user and not known.stuck and not known.kept, Look.LIST,
        "whoever comes before its next use is found by the look before that use",
    ),
)  # fmt: skip


def enough(purpose: Purpose, known: Known) -> Look:
    """Which look is enough for this purpose."""
    state = known.record.state
    for row in TABLE:
        if purpose in row.purposes and state in row.states and row.holds(known):
            return row.look
    return Look.SEARCH
