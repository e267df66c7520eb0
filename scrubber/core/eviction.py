"""Whether the policy lets a scrub end the holders of a device. What counts as a leftover is decided in ``leftover``."""

from __future__ import annotations

from policies.model import Eviction, Policy
from scrubber.core import leftover
from scrubber.core.model import Facts, Holder, Record


def terminable(holder: Holder, record: Record, policy: Policy) -> bool:
    """Whether the policy lets a scrub end this process: never a process of a live container."""
    ends = Eviction.TERMINATE
    leftovers, foreign = policy.evict.leftovers is ends, policy.evict.foreign is ends
    return leftover.may_end(holder, leftover.span(record), leftovers=leftovers, foreign=foreign)


def all_terminable(record: Record, facts: Facts, policy: Policy) -> bool:
    """Whether a scrub may end every holder. False when the holders are not known."""
    return facts.holders is not None and all(terminable(holder, record, policy) for holder in facts.holders)
