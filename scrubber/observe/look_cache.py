"""When each device was looked at: how long a look may stand, and since when nobody looked. Looks at nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from scrubber.core.model import Facts, Holder, Moment, Record, State

SHARE = 1 / 300  # of a core: what full looks may cost that nothing calls for
LINGERS = 10.0  # seconds for which a stranger who lives counts as a user: one who let go may be waited for
UNWATCHED = 30.0  # seconds without a look after which a device counts as unwatched: several rounds
TENANTED = frozenset({State.GRANTED, State.IN_USE})


class ObservedSince:
    """Since when each device has been looked at, again and again: who came meanwhile was met, unless he was quick."""

    def __init__(self, began: float, now: Callable[[], Moment]) -> None:
        """``began``: before that nobody looked at any."""
        self._began = began
        self._now = now
        self._last: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def kept(self, device: str, facts: Facts) -> Facts:
        """With since when the device has been watched. A look that could not tell is none."""
        if facts.holders is not None:
            now = self._now().uptime
            if now - self._last.get(device, now) > UNWATCHED:
                self._since[device] = now
            self._last[device] = now
        return replace(facts, observed_since=self._since.get(device, self._began))


@dataclass(frozen=True, slots=True)
class CachedLook:
    """A full look at a device, and how long it may stand."""

    at: float
    until: float
    facts: Facts
    listed: frozenset[int]  # whom the driver named
    witnesses: tuple[Holder, ...]  # while one of them runs, what was seen may stand


class LookCache:
    """One for each device; a look that could not tell is none."""

    def __init__(self) -> None:
        """Nothing was looked at yet."""
        self._last: dict[str, CachedLook] = {}

    def remember(
        self, record: Record, facts: Facts, listed: frozenset[int], witnesses: tuple[Holder, ...], took: float
    ) -> None:
        """``took`` is how long the look did, in seconds: a costly one stands for longer."""
        if facts.holders is None:
            self.forget(record)
            return
        now = asyncio.get_running_loop().time()
        until = now + max(1.0, took / SHARE)
        self._last[record.device.uuid] = CachedLook(
            now, until, replace(facts, starting_pod_alive=None), listed, witnesses
        )

    def forget(self, record: Record) -> None:
        """The next look is to be a full one."""
        self._last.pop(record.device.uuid, None)

    def met_nobody(self, record: Record) -> bool:
        """Whether the last full look, which is not long ago, met nobody."""
        visit = self._standing(record)
        return visit is not None and visit.facts.holders == ()

    def witnessed(self, record: Record) -> tuple[CachedLook, Holder] | None:
        """The last full look and who bears witness to it as long as he runs; None where it cannot stand.

        Of a device with an owner he is the owner's, on the device or not; of one without, somebody may be waiting for
        it, so that it stands for less time.
        """
        visit = self._standing(record)
        if visit is None or (record.state not in TENANTED and asyncio.get_running_loop().time() > visit.at + LINGERS):
            return None
        owner = record.owner.container if record.owner else None
        if owner is not None and visit.facts.owner_alive is not True:
            return None
        if record.owner is not None and record.owner.unannounced and not visit.facts.holders:
            return None  # that he let go may be why it is taken from him
        met = (visit.facts.holders or ()) if owner is None else visit.witnesses
        witness = next((it for it in met if owner in (None, it.container)), None)
        return None if witness is None else (visit, witness)

    def _standing(self, record: Record) -> CachedLook | None:
        visit = self._last.get(record.device.uuid)
        return None if visit is None or asyncio.get_running_loop().time() > visit.until else visit
