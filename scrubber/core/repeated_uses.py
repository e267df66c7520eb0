"""Who uses a device that was not given to him: read from its newest events.

Such a use ends a proof, or makes a scrub fail. Who does it again and again keeps the device out of service.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

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
    last: float  # wall time of the last use, or at which it was noticed
    wiped: bool  # a scrub has passed since
    tenants: tuple[str, ...] = ()  # who had it then, by the best known name: a pod, a job, or the UID of a pod
    held: bool = False  # somebody had it then, known or not: AutoclaveGpuOpened calls that ``had_by``
    noticed: bool = False  # no open attempt tells when the last use was: it was noticed then


def unauthorised(entries: Iterable[LedgerEntry], uptime: float) -> UnauthorisedUse | None:
    """The uses after the last scrub that passed; if there are none, those before it. None: there were none at all.

    Without those by openers that the policy exempted. ``uptime``: now.
    """
    passed = -math.inf  # wall time of the last proof
    wiped, unwiped = list[_Use](), list[_Use]()
    tenancies = list[_Tenancy]()
    for entry in entries:
        places = dict[str, str]()
        at, is_late, is_held, is_noticed, tenant = entry.at.wall, False, False, False, ""
        match entry.event:
            case ev.Granted(grant) | ev.GrantedUnproven(grant):
                tenancies.append(_Tenancy(at, grant.owner))
            case ev.PutInUse(owner):
                if not tenancies or tenancies[-1].is_over:
                    tenancies.append(_Tenancy(at, ""))
                tenancies[-1] = replace(tenancies[-1], pod=owner.called, container=owner.container or "")
            case ev.Released() | ev.Distrusted() if tenancies:
                tenancies[-1] = replace(tenancies[-1], is_over=True)
            case ev.ScrubPassed(receipt=receipt):
                passed = receipt.finished.wall
                wiped, unwiped = wiped + unwiped, []
            case ev.Soiled(holders=holders, unnamed=unnamed):
                places = {holder.container or NO_CONTAINER: "" for holder in holders} | ({"": ""} if unnamed else {})
                is_noticed = True  # perhaps after a time without the service
            case ev.OpenAttempted(opener, held=held) if opener.was_let_through:
                places, is_held = {opener.place: opener.pod}, held
                at, is_late = opener.last, not held and opener.last < passed  # such a row may come after the proof
                if held:  # the row may also come after the end of the tenancy, and after the next grant
                    tenant = next((it.tenant for it in reversed(tenancies) if it.began <= at), "")
            case _:
                pass
        if places and 0 <= uptime - entry.at.uptime <= LATELY:
            (wiped if is_late else unwiped).append(_Use(at, places, is_held, tenant, passed if is_noticed else None))
    uses = unwiped or wiped
    if not uses:
        return None
    found = {place: pod for use in uses for place, pod in use.places.items()}
    if len(found) > 1:  # the others tell who it was
        found.pop("", None)
    tenants = dict.fromkeys(use.tenant for use in uses if use.tenant)
    held, last = any(use.held for use in uses), max(_at_their_times(uses), key=lambda use: use.at)
    noticed = last.proven is not None
    return UnauthorisedUse(found, last.at, wiped=not unwiped, tenants=tuple(tenants), held=held, noticed=noticed)


def _at_their_times(uses: Sequence[_Use]) -> list[_Use]:
    """These, without those that were noticed if an open attempt since the proof before tells when the use was."""
    tried = max((use.at for use in uses if use.proven is None and not use.held), default=-math.inf)
    return [use for use in uses if use.proven is None or tried <= use.proven]


@dataclass(frozen=True, slots=True)
class _Use:
    at: float  # wall
    places: Mapping[str, str]
    held: bool  # somebody had the device
    tenant: str  # who that was; empty: nobody, or that is not known
    proven: float | None  # of a use that was noticed, wall time of the proof before it; None: an open attempt


@dataclass(frozen=True, slots=True)
class _Tenancy:
    began: float  # wall
    acquired_by: str
    pod: str = ""
    container: str = ""
    is_over: bool = False

    @property
    def tenant(self) -> str:
        return self.pod or self.acquired_by or self.container


def _who(holder: Holder) -> tuple[str | None, str]:
    """For a process in a container, the container.

    Outside containers a process can choose its name, but no better name is known.
    """
    return holder.container, "" if holder.container is not None else holder.command
