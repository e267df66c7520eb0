"""Since when processes that do not end hold a device: one rule for what a scrub finds, and for what is seen in use.

Only an answer that names none of these processes ends the time. A step or an observation that was held up is no answer.
"""

from __future__ import annotations

import math

from scrubber.core.model import Evicted, Holder, Moment, Outcome, StepResult, Stuck

GIVEN_UP_AFTER = 600.0  # seconds; a stall of network storage or of the driver often passes before, without an alarm

Answer = tuple[Holder, ...] | None
"""The processes that do not end; None: nobody could say."""


def followed(before: Stuck | None, answer: Answer, at: Moment) -> Stuck | None:
    """Who is stuck after this answer. The time goes on while one of them is the same process."""
    if answer is None:
        return before
    if not answer:
        return None
    stuck_before = {(holder.pid, holder.started) for holder in before.holders} if before is not None else set()
    same = any((holder.pid, holder.started) in stuck_before for holder in answer)
    return Stuck(answer, before.since if before is not None and same else at)


def left_by(evict: StepResult) -> Answer:
    """The processes that this evict has told to end in vain. Where it told none, somebody else was in its way."""
    if evict.outcome is Outcome.PASSED:
        return ()
    return evict.findings.stuck or None if isinstance(evict.findings, Evicted) else None


def held_for(stuck: Stuck | None, now: Moment) -> float:
    """For how many seconds processes that do not end hold the device; less than nothing: none does."""
    return now.uptime - stuck.since.uptime if stuck is not None else -math.inf
