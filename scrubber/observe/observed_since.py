"""Since when each device is observed without a gap."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace

from scrubber.core import short_uses
from scrubber.core.model import Facts, Moment
from scrubber.core.witness import Counted, Missed, Testimony, Witness
from scrubber.node import clock

OBSERVED_WITHIN = 5.0  # seconds at most between two observations of a device in the usual course
UNOBSERVED = 3 * OBSERVED_WITHIN  # seconds without an observation after which there is a gap


class ObservedSince:
    """Since when each device is observed without a gap. A process that held the device meanwhile was seen."""

    def __init__(self, began: float, now: Callable[[], Moment] = clock.now, unobserved: float = UNOBSERVED) -> None:
        """No device was observed before ``began``. ``unobserved``: the seconds after which there is a gap."""
        self._unobserved = unobserved
        self._began = began
        self.now = now  # as the times of the facts tell it
        self._last: dict[str, tuple[float, bool]] = {}  # when, and whether the fence counted by then
        self._since: dict[str, tuple[float, str]] = {}  # with the reason, for operators
        self._used_at: dict[str, tuple[float, str]] = {}  # with the reason if it is not known whether it was used
        self._testimonies: dict[str, Testimony] = {}  # the last answer of the witness of short uses
        self._turn = threading.Lock()

    def interrupt(self, device: str, why: str) -> None:
        """Something has the device open, and may leave before it can be recorded: no earlier proof is valid.

        A scrub that has already cleared the memory is not valid either: for the scrub this is a gap. ``why``: what had
        the device open, for operators.
        """
        now = self.now().uptime
        self.used(device, now)
        self._since[device] = now, why

    def testified(self, device: str, said: Testimony) -> None:
        """The witness of short uses has answered. Called by any thread.

        Answers may come in another order than they were given in: a smaller count is an older one.
        """
        with self._turn:
            before = self._testimonies.get(device)
            self._testimonies[device], use = short_uses.compared(before, said)
            if use is not None:
                self._used(device, self.now().uptime, use.unsure)

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
        now = self.now()
        if facts.holders is not None:
            last, fenced = self._last.get(device, (now.uptime, False))
            gap, fences = now.uptime - last, isinstance(said, Counted) and said.by is Witness.FENCE
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
