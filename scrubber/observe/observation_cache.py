"""How long the last full observation of a device is valid, and since when the device is observed without a gap."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from scrubber.core import short_uses
from scrubber.core.model import Facts, Holder, Moment, State
from scrubber.core.record import Record
from scrubber.core.witness import FENCE, Counted, Missed, Testimony
from scrubber.node import clock

CPU_SHARE = 1 / 300  # the part of one CPU core that routine full observations may use
VALID_AT_LEAST = 1.0  # seconds for which a full observation is valid, however quick it was
VALID_FOR = 10.0  # seconds for which a cached holder counts on a device without an owner: a pod may wait for the device
OBSERVED_WITHIN = 5.0  # seconds at most between two observations of a device in the usual course
UNOBSERVED = 3 * OBSERVED_WITHIN  # seconds without an observation after which there is a gap
ASSIGNED = frozenset({State.GRANTED, State.IN_USE})


class ObservedSince:
    """Since when each device is observed without a gap. A process that held the device meanwhile was seen."""

    def __init__(self, began: float, now: Callable[[], Moment] = clock.now, unobserved: float = UNOBSERVED) -> None:
        """No device was observed before ``began``. ``unobserved``: the seconds after which there is a gap."""
        self._unobserved = unobserved
        self._began = began
        self._now = now
        self._last: dict[str, tuple[float, bool]] = {}  # when, and whether the fence counted by then
        self._since: dict[str, tuple[float, str]] = {}  # with the reason, for operators
        self._used_at: dict[str, tuple[float, str]] = {}  # with the reason if it is not known whether it was used
        self._testimonies: dict[str, Testimony] = {}  # the last answer of the witness of short uses
        self._turn = threading.Lock()

    def uptime(self) -> float:
        """The time now, as the times of the facts tell it."""
        return self._now().uptime

    def interrupt(self, device: str, why: str) -> None:
        """Something has the device open, and may leave before it can be recorded: no earlier proof is valid.

        A scrub that has already cleared the memory is not valid either: for the scrub this is a gap. ``why``: what had
        the device open, for operators.
        """
        now = self._now().uptime
        self.used(device, now)
        self._since[device] = now, why

    def testified(self, device: str, said: Testimony) -> None:
        """The witness of short uses has answered. Called by any thread.

        Answers may come in another order than they were given in: a smaller count is an older one.
        """
        with self._turn:
            before = self._testimonies.get(device)
            if short_uses.is_older(said, before):
                return
            self._testimonies[device] = said
            use = short_uses.use_between(before, said)
            if use is not None:
                self._used(device, self._now().uptime, use.unsure)

    def testimony(self, device: str) -> Testimony | None:
        """The last answer of the witness of short uses; None before the first one."""
        return self._testimonies.get(device)

    def uses_since(self, device: str, uptime: float) -> Counted | None:
        """What the witness counted last, if it has counted on and others have not used the device; else None."""
        with self._turn:
            said, (used_at, _) = self._testimonies.get(device), self._used_at.get(device, (-math.inf, ""))
            since, _ = self._since.get(device, (self._began, ""))
            return said if isinstance(said, Counted) and max(used_at, since) <= uptime else None

    def resume(self, device: str, since: float, said: Counted) -> None:
        """An earlier run observed the device at ``since``, and its witness, which has counted on, said this then."""
        with self._turn:
            self._since[device] = since, ""
            self._testimonies[device] = said

    def used(self, device: str, at: float) -> None:
        """A process used the device until this uptime at the latest, and has left. Called by any thread."""
        with self._turn:
            self._used(device, at)

    def _used(self, device: str, at: float, unsure: str = "") -> None:
        if at >= self._used_at.get(device, (at, ""))[0]:
            self._used_at[device] = at, unsure

    def stamped(self, device: str, facts: Facts) -> Facts:
        """The facts with their times. An observation that could not tell the holders does not count.

        Between two answers of the fence there is no gap: the kernel has counted meanwhile.

        While the witness of short uses cannot answer, nothing can be proven of the device, so its holders count as
        unknown, too.
        """
        said = self._testimonies.get(device)
        if isinstance(said, Missed):
            facts = replace(facts, holders=None, shortage=facts.shortage or said.why)
        now = self._now()
        if facts.holders is not None:
            last, fenced = self._last.get(device, (now.uptime, False))
            gap, fences = now.uptime - last, isinstance(said, Counted) and said.by == FENCE
            if gap > self._unobserved and not (fenced and fences):
                why = f"it was not observed for {gap:.1f} s; at most {self._unobserved:g} s may pass"
                self._since[device] = now.uptime, why
            self._last[device] = now.uptime, fences
        used_at, unsure = self._used_at.get(device, (facts.used_at, ""))
        since, why = self._since.get(device, (self._began, ""))
        return replace(
            facts,
            at=now,
            observed_since=since,
            unobserved=why,
            used_at=used_at,
            use_unsure=unsure,
            witness=said,
        )


@dataclass(frozen=True, slots=True)
class CachedObservation:
    """A full observation of a device, and how long it is valid."""

    at: float
    until: float
    facts: Facts
    listed: frozenset[int]  # the holders that the driver listed
    confirming: tuple[Holder, ...]  # while one of them runs, the facts may be valid


class ObservationCache:
    """The last full observation of each device. An observation that could not tell the holders is not kept."""

    def __init__(self) -> None:
        self._last: dict[str, CachedObservation] = {}

    def remember(
        self, record: Record, facts: Facts, listed: frozenset[int], confirming: tuple[Holder, ...], took: float
    ) -> None:
        """``took``: the seconds that the observation took. A costly observation is valid for longer."""
        if facts.holders is None:
            self.forget(record)
            return
        now = asyncio.get_running_loop().time()
        until = now + max(VALID_AT_LEAST, took / CPU_SHARE)
        kept = replace(facts, starting_pod_alive=None)
        self._last[record.device.uuid] = CachedObservation(now, until, kept, listed, confirming)

    def forget(self, record: Record) -> None:
        """Make the next observation a full one."""
        self._last.pop(record.device.uuid, None)

    def shows_no_holder(self, record: Record) -> bool:
        """Whether the last full observation is valid and found no holder."""
        last = self._valid(record)
        return last is not None and last.facts.holders == ()

    def confirmed(self, record: Record) -> tuple[CachedObservation, Holder] | None:
        """The last full observation, and a process that confirms the observation for as long as it runs.

        None if the observation is too old or there is no such process. On a device with an owner, the process must
        belong to the owner; it need not hold the device. Without an owner any holder counts, for a shorter time.
        """
        last = self._valid(record)
        if last is None or (record.state not in ASSIGNED and asyncio.get_running_loop().time() > last.at + VALID_FOR):
            return None
        owner = record.tenancy.container
        if owner is not None and last.facts.owner_alive is not True:
            return None
        if record.tenancy.owner is not None and record.tenancy.owner.unannounced and not last.facts.holders:
            return None  # an unannounced pod that no longer holds the device may lose it
        candidates = (last.facts.holders or ()) if owner is None else last.confirming
        confirming = next((it for it in candidates if owner in (None, it.container)), None)
        return None if confirming is None else (last, confirming)

    def _valid(self, record: Record) -> CachedObservation | None:
        last = self._last.get(record.device.uuid)
        return None if last is None or asyncio.get_running_loop().time() > last.until else last
