"""Reads the attempts that the kernel tells, judges which of them are no uses, and remembers who made them.

Who made an attempt that was refused is looked up afterwards, in a small part of the time: it was no use, and who floods
may ask for all of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace

from ground import log
from scrubber.fence.ignored import IgnoredAttempts, Sources
from scrubber.fence.kernel.attempts import Attempt
from scrubber.fence.kernel.fence import Fence
from scrubber.fence.live_openers import LiveOpeners
from scrubber.fence.rules import Rules

logger = log.get("fence")

_REFUSED = 256  # refused attempts that wait until it is looked up who made them
_LOOKS = 0.1  # the part of its time in which the thread looks that up
_LAST_LOOKS = 1.0  # seconds in which it is looked up at a stop: nobody else can do so later


class AttemptReader:
    """Reads those of all devices."""

    def __init__(self, fence: Fence, service: int, sources: Sources, rules: Rules, openers: LiveOpeners) -> None:
        """``service``: the control group of this service."""
        self.judging = threading.Lock()  # an attempt can be read once: ``judge`` needs it
        self.looks_again = 0.0  # when it is looked up next who was refused
        self._refused = deque[tuple[str, Attempt]](maxlen=_REFUSED)
        self._attempts = fence.attempts
        self._fence = fence
        self._ignored = IgnoredAttempts(service, sources)
        self._sources = sources
        self._rules = rules
        self._openers = openers

    @property
    def waits(self) -> bool:
        """Whether it is to be looked up who was refused."""
        return bool(self._refused)

    def judge(self) -> int | None:
        """Judge the attempts that can be read. Returns where they end; None if one more was asked meanwhile."""
        rules = self._rules
        if not rules.device_of or rules.ended:
            return None  # nobody would know yet whose they are
        new = [(rules.device_of.get(attempt.device), attempt) for attempt in self._attempts.new()]
        asked = [(uuid, attempt) for uuid, attempt in new if uuid is not None]
        with rules.turn:
            for uuid in {uuid for uuid, attempt in asked if attempt.refused}:
                rules.open(uuid)  # perhaps to a group that began after the last round
        for uuid, attempt in asked:
            if attempt.refused:  # the kernel says that it was no use
                self._refused.append((uuid, attempt))
            elif self._look_up(uuid, attempt):
                self._ignore(uuid, attempt)
        end = self._attempts.end()
        return None if self._attempts.waiting() else end

    def is_at(self, end: int | None) -> bool:
        """Whether nobody has asked since ``judge`` has returned this."""
        return end is not None and self._attempts.end() == end

    def _look_up(self, uuid: str, attempt: Attempt) -> bool:
        """Find and remember who made the attempt, unless it was the service. Whether the attempt is not a use."""
        judged = self._ignored.judge(uuid, attempt)
        if judged is None:
            return True
        exempt = bool(judged.groups & self._sources.terms(uuid).exempt)
        opener = judged.opener(attempt, self._sources.pod_name(judged.place), exempt=exempt)
        self._openers.add(uuid, opener, ignored=judged.ignored, at=attempt.uptime)
        return judged.ignored

    def _ignore(self, uuid: str, attempt: Attempt) -> None:
        with self._rules.turn:
            if attempt.device not in self._rules.numbers.get(uuid, ()):
                return
            try:
                kept = self._fence.kept(attempt.device)
                self._fence.keep(attempt.device, replace(kept, ignored=kept.ignored + 1))
            except OSError as error:  # it stays a use
                logger.warning("the fence does not ignore an attempt", device=uuid, error=str(error))

    def look_up_refused(self) -> None:
        """Remember who made the attempt that was refused first, unless too much time went into that already."""
        began = time.monotonic()
        if not self._refused or began < self.looks_again:
            return
        with self.judging:
            uuid, attempt = self._refused.popleft()
            self._look_up(uuid, attempt)
            with self._rules.turn:
                self._rules.open(uuid)  # perhaps to a group of which nobody knew before that look
        now = time.monotonic()
        self.looks_again = now + (now - began) * (1 / _LOOKS - 1)

    def close(self) -> None:
        """Look up once more who was refused."""
        until = time.monotonic() + _LAST_LOOKS
        while self._refused and time.monotonic() < until:
            self._look_up(*self._refused.popleft())
