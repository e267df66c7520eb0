"""Since when each device is observed without a gap, and whether only its owner has it, without another search.

Two things prove that nobody else has the device: a search found nobody else, and the fence has counted nobody since a
moment before the search, however long ago that was. The fence does not count a pod that was let in, so the proof ends
with the tenancy of that pod.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from scrubber.core import fencing
from scrubber.core.fencing import Container, MayOpen, OpenTo, Pods
from scrubber.core.model import Facts, Holder, Moment, Sighting
from scrubber.core.observation import FenceTells
from scrubber.core.record import Record
from scrubber.core.use_counter import Counted, Missed, NoUseCounter, UseCounter, UseReading
from scrubber.node import clock

Uses = tuple[str, int]  # which counter has counted so many
OBSERVED_WITHIN = 5.0  # seconds at most between two observations of a device in the usual course
UNOBSERVED = 3 * OBSERVED_WITHIN  # seconds without an observation after which there is a gap


@dataclass(frozen=True, slots=True)
class Before:
    """What was known of a device when a search began."""

    reading: UseReading
    changes: int  # how often somebody else was let in, or nobody any more, or the device was doubted
    bystanders: object  # who does not count, as the policy says: it may change


@dataclass(frozen=True, slots=True)
class LastSearch:
    """What the last search for the holders of a device showed."""

    at: float = -math.inf  # the uptime of its end
    uses: Uses | None = None  # those that the fence had counted when it began; None if the fence did not say
    no_other_user: bool = False  # nobody but the owner had the device then ...
    bystanders: object = None  # ... apart from these


@dataclass(frozen=True, slots=True)
class Use:
    """Others have used the device, or may have."""

    unsure: str = ""  # why it is not known whether they have; empty: they have


class ObservedSince:
    """What earlier observations of each device show now. They saw each process that has held the device since."""

    def __init__(
        self,
        began: float,
        now: Callable[[], Moment] = clock.now,
        unobserved: float = UNOBSERVED,
        bystanders: Callable[[str], object] = lambda _uuid: None,
        *,
        counts_all: bool = False,
    ) -> None:
        """No device was observed before ``began``.

        ``unobserved``: the seconds after which there is a gap. ``bystanders``: the programs that do not count as
        holders of a device under the present policy. ``counts_all``: whether the fence counts all others.
        """
        self._bystanders = bystanders
        self._counts_all = counts_all
        self._unobserved = unobserved
        self._began = began
        self.now = now  # as the times of the facts tell it
        self._last: dict[str, tuple[float, bool]] = {}  # when, and whether the fence counted by then
        self._since: dict[str, tuple[float, str]] = {}  # with the reason, for operators
        self._used_at: dict[str, tuple[float, str]] = {}  # with the reason if it is not known whether it was used
        self._readings: dict[str, UseReading] = {}  # the last answer of the use counter
        self._turn = threading.Lock()  # of what a use counter has said, and the uses that follow from it
        self._searches: dict[str, LastSearch] = {}
        self._changes = Counter[str]()  # by device: as ``Before`` counts them

    # -- without a gap

    def interrupt(self, device: str, why: str) -> None:
        """A process has the device open, and may leave before it can be recorded: no earlier proof is valid.

        A scrub that has already cleared the memory is not valid either, because for the scrub this is a gap. ``why``:
        what had the device open, for operators.
        """
        now = self.now().uptime
        self.used(device, now)
        self._since[device] = now, why

    def read(self, device: str, reading: UseReading) -> None:
        """The use counter has answered.

        Any thread may call this. Answers may arrive in another order than they were given in: a smaller count is an
        older one.
        """
        with self._turn:
            before = self._readings.get(device)
            self._readings[device], use = compared(before, reading)
            if use is not None:
                self._used(device, self.now().uptime, use.unsure)

    def last_reading(self, device: str) -> UseReading | None:
        """The last answer of the use counter; None before the first one."""
        return self._readings.get(device)

    def uses_since(self, device: str, uptime: float) -> Counted | None:
        """The last count of the use counter, if it has no gap and others have not used the device; otherwise None."""
        with self._turn:
            reading, (used_at, _) = self._readings.get(device), self._used_at.get(device, (-math.inf, ""))
            since, _ = self._since.get(device, (self._began, ""))
            return reading if isinstance(reading, Counted) and max(used_at, since) <= uptime else None

    def used(self, device: str, at: float) -> None:
        """A process used the device until this uptime at the latest, and has left. Any thread may call this."""
        with self._turn:
            self._used(device, at)

    def _used(self, device: str, at: float, unsure: str = "") -> None:
        if at >= self._used_at.get(device, (at, ""))[0]:
            self._used_at[device] = at, unsure

    def facts(
        self,
        device: str,
        seen: Sighting,
        *,
        domain_resetting: bool,
        at: Moment | None = None,
    ) -> Facts:
        """The facts: what was seen, and since when.

        An observation that could not determine the holders does not count. ``at``: the moment of the observation.
        Between two answers of the fence there is no gap, because the kernel has counted all the time. While the use
        counter cannot answer, nothing can be proven about the device, so its holders also count as unknown.
        """
        reading, now = seen.use_reading, at or self.now()
        if reading is not None:
            self.read(device, reading)
        if isinstance(reading, Missed):
            seen = replace(seen, holders=None, shortage=seen.shortage or reading.why)
        if seen.holders is not None:
            last, fenced = self._last.get(device, (now.uptime, False))
            gap, fences = now.uptime - last, _counted(reading) is not None
            if gap > self._unobserved and not (fenced and fences):
                why = f"it was not observed for {gap:.1f} s; at most {self._unobserved:g} s may pass"
                self._since[device] = now.uptime, why
            self._last[device] = now.uptime, fences
        used_at, unsure = self._used_at.get(device, (-math.inf, ""))
        since, why = self._since.get(device, (self._began, ""))
        return Facts(
            incarnation=seen.incarnation,
            holders=seen.holders,
            pods={},
            owner_alive=seen.owner_alive,
            starting_pod_alive=seen.starting_pod_alive,
            siblings_busy=seen.siblings_busy,
            vitals=seen.vitals,
            shortage=seen.shortage,
            held_up=seen.held_up,
            bystander_pods=seen.bystander_pods,
            domain_resetting=domain_resetting,
            observed_since=since,
            unobserved=why,
            used_at=used_at,
            used_by="",
            users_exempt=False,
            use_unsure=unsure,
            use_reading=reading,
            owner_left=False,
            successor=None,
            withheld=False,
            epoch="",
            assigned_pods=None,
            hung=None,
            at=now,
        )

    # -- without another search

    def changed(self, device: str, before: MayOpen) -> None:
        """The fence is open to others than before."""
        if before is not OpenTo.SERVICE:
            self.doubt(device)
        self._changes[device] += 1

    def doubt(self, device: str) -> None:
        """No search proves anything that has ended or begun before this call."""
        self._changes[device] += 1
        self._searches[device] = replace(self._last_search(device), no_other_user=False)

    def doubt_all(self) -> None:
        """``doubt`` each device."""
        for device in tuple(self._searches):
            self.doubt(device)

    def before_search(self, readings: Mapping[str, UseReading]) -> dict[str, Before]:
        """What is known of these devices when a search for their holders begins: their use counters were just read."""
        for device, reading in readings.items():
            self.read(device, reading)
        return {
            device: Before(reading, self._changes[device], self._bystanders(device))
            for device, reading in readings.items()
        }

    def searched(
        self,
        before: Mapping[str, Before],
        records: Iterable[Record],
        holders: Mapping[str, tuple[Holder, ...] | None],
        *,
        settled: bool = True,
    ) -> None:
        """The search has found these holders of these devices. One that is not ``settled`` adds no proof."""
        at = self.now().uptime
        for record in records:
            device = record.device.uuid
            begun, found, owner = before.get(device), holders[device], fencing.open_to(record)
            if begun is None:
                continue
            uses, names = _counted(begun.reading), owner.names if isinstance(owner, Container | Pods) else ()
            only_owner = found is not None and all(holder.container in names for holder in found)
            only_owner = only_owner and begun.changes == self._changes[device]
            only_owner = only_owner and (settled or self._has_no_other_user(device, begun.reading))
            self._searches[device] = LastSearch(at, uses, only_owner, begun.bystanders)

    def resume(self, device: str, since: float, reading: Counted) -> None:
        """An earlier run of the service proved the device clean at ``since``.

        ``reading`` is the last answer that its use counter gave then. The counter has continued to count, and that run
        observed the device until its end.
        """
        with self._turn:
            self._since[device] = since, ""
            self._readings[device] = reading
        self._searches[device] = LastSearch(
            uses=_counted(reading), no_other_user=True, bystanders=self._bystanders(device)
        )

    def fence_tells(self, device: str, reading: UseReading | None = None) -> FenceTells:
        """What the fence has counted since the last search.

        ``reading``: the newest answer of the fence.
        """
        if reading is not None:
            self.read(device, reading)
        reading = self._readings.get(device)
        uses = _counted(reading)
        opened = uses is not None and self._last_search(device).uses != uses
        ago = self.now().uptime - self._last_search(device).at
        return FenceTells(self._counts_all, self._has_no_other_user(device, reading), opened, ago)

    def _has_no_other_user(self, device: str, reading: UseReading | None) -> bool:
        uses, last = _counted(reading), self._last_search(device)
        same = last.no_other_user and last.bystanders == self._bystanders(device)
        return same and uses is not None and last.uses == uses

    def _last_search(self, device: str) -> LastSearch:
        return self._searches.get(device, LastSearch())


def _counted(reading: UseReading | None) -> Uses | None:
    """What the fence has counted; None if another use counter answers, or if none answers."""
    if not isinstance(reading, Counted) or reading.by is not UseCounter.FENCE:
        return None
    return reading.fence.counter if reading.fence is not None else "", reading.uses


def compared(before: UseReading | None, reading: UseReading) -> tuple[UseReading, Use | None]:
    """The later of two answers of a use counter, and what they say about the time between them.

    Of two counts of one use counter, the smaller one is the earlier one: answers may arrive in another order.
    """
    match before, reading:
        case Counted(uses=uses), Counted() if _continues(before, reading) and reading.uses < uses:
            return before, None
    return reading, _use_between(before, reading)


def _continues(before: Counted, now: Counted) -> bool:
    """Whether one counter gave both answers, so that the greater one is the later one."""
    anew = before.fence is not None and now.fence is not None and before.fence.counter != now.fence.counter
    return before.by == now.by and not anew


def _use_between(before: UseReading | None, now: UseReading) -> Use | None:
    """What two answers in a row say about the time between them. ``before`` is None if ``now`` is the first answer."""
    if isinstance(now, Missed):
        return Use(now.why)
    if isinstance(before, Missed):
        return Use(before.why)
    if isinstance(before, NoUseCounter) and isinstance(now, Counted):
        return Use(f"nobody had counted short uses before: {before.why}")
    if not isinstance(before, Counted):
        return None
    if isinstance(now, NoUseCounter):  # it had one until now
        return Use(now.why)
    if now.by != before.by:
        return Use(f"{before.words} no longer counts, and {now.words} had not counted before")
    return Use(now.missed) if now.uses > before.uses or not _continues(before, now) else None
