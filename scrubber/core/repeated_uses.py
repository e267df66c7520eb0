"""Who uses a device that was not given to him: read from its newest events.

Such a use ends a proof, or makes a scrub fail. Who does it again and again keeps the device out of service.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scrubber.core import events as ev
from scrubber.core.events import LedgerEntry
from scrubber.core.model import NO_CONTAINER, Holder

AGAIN = 2  # uses: a single one, such as a person who has looked at the GPU, ends by itself
LATELY = 3600.0  # seconds; who has stayed away for longer does not come again and again
ANEW = (ev.Granted, ev.GrantedUnproven, ev.PutInUse, ev.Distrusted)  # handed out, or of another boot


@dataclass(frozen=True, slots=True)
class RepeatedUse:
    """A container, or the processes with one name outside containers; or processes that had left each time."""

    last: Holder | None  # the newest process; None: it could not be named
    times: int


def of(entries: Iterable[LedgerEntry], uptime: float) -> tuple[RepeatedUse, ...]:
    """Who has used the device repeatedly since it was last handed out or distrusted, the most frequent first.

    ``uptime``: now.
    """
    seen: dict[tuple[str | None, str] | None, list[Holder | None]] = {}
    for entry in entries:
        if isinstance(entry.event, ANEW):
            seen.clear()
        if not isinstance(entry.event, ev.Soiled | ev.ScrubFailed) or not 0 <= uptime - entry.at.uptime <= LATELY:
            continue
        came: dict[tuple[str | None, str] | None, Holder | None] = {
            _who(holder): holder for holder in entry.event.holders
        }
        if entry.event.unnamed:
            came[None] = None
        for who, holder in came.items():
            seen.setdefault(who, []).append(holder)
    uses = (RepeatedUse(each[-1], len(each)) for each in seen.values() if len(each) >= AGAIN)
    return tuple(sorted(uses, key=lambda use: -use.times))


@dataclass(frozen=True, slots=True)
class UnauthorisedUse:
    """Who has used a device lately that was not given to him."""

    places: Mapping[str, str]  # NAMESPACE/POD by ``Opener.place``; empty: it is no pod, or its name is not known
    last: float  # wall time of the last use
    wiped: bool  # a scrub has passed since


def unauthorised(entries: Iterable[LedgerEntry], uptime: float) -> UnauthorisedUse | None:
    """The uses after the last scrub that passed; if there are none, those before it. None: there were none at all.

    Without those by openers that the policy exempted. ``uptime``: now.
    """
    passed = -math.inf  # wall time of the last proof
    wiped, unwiped = list[tuple[float, dict[str, str]]](), list[tuple[float, dict[str, str]]]()
    for entry in entries:
        places = dict[str, str]()
        at, is_late = entry.at.wall, False
        match entry.event:
            case ev.ScrubPassed(receipt=receipt):
                passed = receipt.finished.wall
                wiped, unwiped = wiped + unwiped, []
            case ev.Soiled(holders=holders, unnamed=unnamed):
                places = {holder.container or NO_CONTAINER: "" for holder in holders} | ({"": ""} if unnamed else {})
            case ev.OpenAttempted(opener, held=held) if opener.was_let_through:
                places = {opener.place: opener.pod}
                at, is_late = opener.last, not held and opener.last < passed  # such a row may come after the proof
            case _:
                pass
        if places and 0 <= uptime - entry.at.uptime <= LATELY:
            (wiped if is_late else unwiped).append((at, places))
    uses = unwiped or wiped
    if not uses:
        return None
    found = {place: pod for _, places in uses for place, pod in places.items()}
    if len(found) > 1:  # the others tell who it was
        found.pop("", None)
    return UnauthorisedUse(found, max(at for at, _ in uses), wiped=not unwiped)


def _who(holder: Holder) -> tuple[str | None, str]:
    """For a process in a container, the container.

    Outside containers a process can choose its name, but no better name is known.
    """
    return holder.container, "" if holder.container is not None else holder.command
