"""Since when processes that do not end hold a device: one rule for a scrub, and for a device in use.

The time ends only with an answer that names none of these processes. A step or an observation that was held up is not
an answer.
"""

from __future__ import annotations

import math

from scrubber.core.model import Evicted, Holder, Moment, Outcome, StepResult, Stuck

GIVEN_UP_AFTER = 600.0  # seconds; a stall of network storage or of the driver often passes before, without an alarm

Answer = tuple[Holder, ...] | None
"""The processes that do not end; None: nobody could say."""


def after_answer(before: Stuck | None, answer: Answer, at: Moment) -> Stuck | None:
    """Who is stuck after this answer. The time continues as long as one of these processes remains."""
    if answer is None:
        return before
    if not answer:
        return None
    stuck_before = {(holder.pid, holder.started) for holder in before.holders} if before is not None else set()
    same = any((holder.pid, holder.started) in stuck_before for holder in answer)
    return Stuck(answer, before.since if before is not None and same else at)


def left_by(evict: StepResult) -> Answer:
    """The processes that this evict told to end, and that did not.

    If it told no process, something else prevented the step.
    """
    if evict.outcome is Outcome.PASSED:
        return ()
    return evict.findings.stuck or None if isinstance(evict.findings, Evicted) else None


def held_for(stuck: Stuck | None, now: Moment) -> float:
    """For how many seconds processes that do not end have held the device; negative if there are none."""
    return now.uptime - stuck.since.uptime if stuck is not None else -math.inf
