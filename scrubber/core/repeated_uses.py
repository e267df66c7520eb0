"""Who uses a device that was not given to him: read from its newest events.

Such a use ends a proof, or makes a scrub fail. Who does it again and again keeps the device out of service.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def unauthorised(entries: Iterable[LedgerEntry], uptime: float) -> dict[str, str]:
    """Where those ran who have used the device lately, and were not given it: NAMESPACE/POD by ``Opener.place``.

    Without those that the policy exempted. An empty name: it is no pod, or its name is not known. ``uptime``: now.
    """
    places: dict[str, str] = {}
    for entry in entries:
        if not 0 <= uptime - entry.at.uptime <= LATELY:
            continue
        match entry.event:
            case ev.Soiled(holders=holders, unnamed=unnamed):
                places |= {holder.container or NO_CONTAINER: "" for holder in holders}
                places |= {"": ""} if unnamed else {}
            case ev.OpenAttempted(opener) if opener.was_let_through:
                places[opener.place] = opener.pod
            case _:
                pass
    if len(places) > 1:  # the others tell who it was
        places.pop("", None)
    return places


def _who(holder: Holder) -> tuple[str | None, str]:
    """For a process in a container, the container.

    Outside containers a process can choose its name, but no better name is known.
    """
    return holder.container, "" if holder.container is not None else holder.command
