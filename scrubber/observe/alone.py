"""Which devices nobody has but their owner, without another search.

A search found nobody else, and the fence has counted nobody since: from before the search on, and whatever the time. A
pod that was let in does not count, so the proof ends with its tenancy.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from scrubber.core.fencing import Container, Group, OpenTo
from scrubber.core.model import Holder
from scrubber.core.witness import Counted, Testimony, Witness


@dataclass(frozen=True, slots=True)
class Before:
    """What was known when a search began."""

    said: Testimony | None
    changes: int  # how often another pod was let in, or none any more


@dataclass(frozen=True, slots=True)
class LastSearch:
    """What the last search for the holders of a device showed."""

    at: float = -math.inf  # the uptime of its end
    uses: int | None = None  # how many the fence had counted when it began; None if the fence did not say
    alone: bool = False  # nobody but the owner had the device then


class Alone:
    """For each device, what its last search showed, and whether the fence has counted a use since."""

    def __init__(self) -> None:
        self._searches: dict[str, LastSearch] = {}
        self._let_in: dict[str, Container | Group | None] = {}
        self._changes = Counter[str]()

    def changed(self, uuid: str, open_to: OpenTo | Container | Group) -> None:
        """A row about the device is in the ledger, and the fence is open to whom it is open now."""
        let_in, before = open_to if isinstance(open_to, Container | Group) else None, self._let_in.get(uuid)
        if let_in == before:
            return
        if before is not None:
            self.doubt(uuid)
        self._let_in[uuid] = let_in
        self._changes[uuid] += 1

    def begin(self, uuid: str, said: Testimony | None) -> Before:
        """A search begins. ``said``: the last answer of the witness."""
        return Before(said, self._changes[uuid])

    def end(
        self, uuid: str, before: Before, holders: tuple[Holder, ...] | None, *, at: float, settled: bool = True
    ) -> None:
        """The search has found these holders. One that is not ``settled`` proves nothing that was not proven before."""
        let_in, uses = self._let_in.get(uuid), _counted(before.said)
        name = let_in.name if isinstance(let_in, Container) else None
        alone = holders is not None and all(name is not None and it.container == name for it in holders)
        alone = alone and before.changes == self._changes[uuid] and (settled or self.proven(uuid, before.said))
        self._searches[uuid] = LastSearch(at, uses, alone)

    def resume(self, uuid: str, uses: int) -> None:
        """An earlier run of the service proved the device clean when there were so many uses."""
        self._searches[uuid] = LastSearch(uses=uses, alone=True)

    def doubt(self, uuid: str) -> None:
        """A program that the service has started may have the device open: the fence does not count it."""
        self._searches[uuid] = replace(self._last(uuid), alone=False)

    def searched_at(self, uuid: str) -> float:
        """The uptime of the last search."""
        return self._last(uuid).at

    def has_news(self, uuid: str, said: Testimony | None) -> bool:
        """Whether others have opened the device since the last search: they may have it still."""
        uses = _counted(said)
        return uses is not None and self._last(uuid).uses != uses

    def proven(self, uuid: str, said: Testimony | None) -> bool:
        """Whether nobody but its owner has the device. ``said``: the present answer of the witness."""
        uses, last = _counted(said), self._last(uuid)
        return uses is not None and last.alone and last.uses == uses

    def is_sealed(self, uuid: str) -> bool:
        """Whether the fence is open to no pod and no group."""
        return self._let_in.get(uuid) is None

    def _last(self, uuid: str) -> LastSearch:
        return self._searches.get(uuid, LastSearch())


def _counted(said: Testimony | None) -> int | None:
    """How many uses the fence has counted; None if another witness answers, or none does."""
    return said.uses if isinstance(said, Counted) and said.by is Witness.FENCE else None
