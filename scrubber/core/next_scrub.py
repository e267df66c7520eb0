"""What the policy lets the next scrub of a device do: how thorough it is, and which holders it may end.

``leftover`` tells workers, which know no policy, which holders they may end.
"""

from __future__ import annotations

from policies.hardware import WhenReset
from policies.policy_model import Eviction, Policy
from scrubber.core import leftover
from scrubber.core.ailment_traits import AILMENTS
from scrubber.core.model import Facts, Holder, ScrubPath, State, most_thorough
from scrubber.core.record import Record

RESET_FORBIDDEN = "it needs a reset, and the policy forbids resets (reset.when: never)"


def next_path(record: Record, policy: Policy, *, awaited: bool = False) -> ScrubPath:
    """Which path the device's next scrub takes. ``awaited``: a request waits for it.

    A self-test takes longer than a request can wait. So after a reboot, a device that was proven before takes the path
    between two tenants for a request.
    """
    quarantine = record.health.quarantine
    first = record.state is State.UNKNOWN or (quarantine is not None and AILMENTS[quarantine.ailment.kind].first_look)
    route = policy.paths.first_look if first else policy.paths.new_tenant
    if awaited and route is ScrubPath.SLOW and record.state is State.UNKNOWN and record.scrubs.tested is not None:
        route = policy.paths.new_tenant
    return most_thorough(route, record.scrubs.due_path)


def reset_forbidden(record: Record, policy: Policy) -> bool:
    """Whether the device's next scrub needs a reset that the policy forbids: only a person can bring it back."""
    return forbids(policy, next_path(record, policy))


def forbids(policy: Policy, path: ScrubPath | None) -> bool:
    """Whether the policy forbids this path, because it has a reset."""
    return path is ScrubPath.RESET and policy.reset.when is WhenReset.NEVER


def terminable(holder: Holder, record: Record, policy: Policy) -> bool:
    """Whether the policy lets a scrub end this process: never a process of a live container."""
    ends = Eviction.TERMINATE
    leftovers, foreign = policy.evict.leftovers is ends, policy.evict.foreign is ends
    return leftover.may_end(holder, record.tenancy.span, leftovers=leftovers, foreign=foreign)


def all_terminable(record: Record, facts: Facts, policy: Policy) -> bool:
    """Whether a scrub may end every holder. False when the holders are not known."""
    return facts.holders is not None and all(terminable(holder, record, policy) for holder in facts.holders)
