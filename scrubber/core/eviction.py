"""Which holders a scrub may end, by the policy. ``leftover`` says the same to workers, which know no policy."""

from __future__ import annotations

from policies.policy_model import Eviction, Policy
from scrubber.core import leftover
from scrubber.core.model import Facts, Holder
from scrubber.core.record import Record


def terminable(holder: Holder, record: Record, policy: Policy) -> bool:
    """Whether the policy lets a scrub end this process: never a process of a live container."""
    ends = Eviction.TERMINATE
    leftovers, foreign = policy.evict.leftovers is ends, policy.evict.foreign is ends
    return leftover.may_end(holder, record.tenancy.span, leftovers=leftovers, foreign=foreign)


def all_terminable(record: Record, facts: Facts, policy: Policy) -> bool:
    """Whether a scrub may end every holder. False when the holders are not known."""
    return facts.holders is not None and all(terminable(holder, record, policy) for holder in facts.holders)
