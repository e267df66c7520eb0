"""Whether the proof that a device is clean is valid, how thorough the next scrub must be, and what it may end."""

from __future__ import annotations

from ground.quantities import quantity
from policies.hardware import WhenReset
from policies.policy_model import Eviction, Policy
from scrubber.core import events as ev
from scrubber.core import leftover
from scrubber.core.ailment_traits import AILMENTS
from scrubber.core.model import Facts, Holder, Moment, Receipt, ScrubPath, State, most_thorough
from scrubber.core.record import Record

EXEMPT = ", which the policy exempted"  # such a use is authorised: it ends the proof, and pages nobody
RESET_FORBIDDEN = "it needs a reset, and the policy forbids resets (reset.when: never)"


def is_valid(receipt: Receipt | None, facts: Facts, policy: Policy, now: Moment) -> bool:
    """Whether a receipt still proves what the policy in force asks for."""
    if receipt is None or receipt.policy_digest != policy.proof_digest:
        return False
    if receipt.patterns != policy.clear.passes.patterns:
        return False
    # A proof also says that no process used the device since. A gap in the observations ends that certainty.
    if receipt.finished.uptime < max(facts.observed_since, facts.used_at):
        return False
    return now.uptime - receipt.finished.uptime <= policy.proof.max_age


def leaked_bytes(facts: Facts) -> int:
    """The bytes of memory that are in use and belong to no visible process."""
    return 0 if facts.vitals is None else facts.vitals.leaked_bytes


def leak(leaked: int) -> str:
    """A sentence about these bytes for operators."""
    return f"{quantity(leaked, 'byte is', 'bytes are')} in use, but no visible process holds them"


def ended(record: Record, facts: Facts) -> ev.Distrusted | ev.Soiled | None:
    """What these facts end: the trust in any device, or the proof of a clean device.

    Record it before any other answer.
    """
    if record.incarnation != facts.incarnation and record.state is not State.SCRUBBING:
        rebooted = record.incarnation.boot_id != facts.incarnation.boot_id
        return ev.Distrusted("the node was rebooted" if rebooted else "the driver was reloaded", facts.incarnation)
    if record.state is not State.CLEAN:
        return None
    receipt, times = record.scrubs.receipt, record.scrubs.soiled + 1
    if facts.holders and facts.users_exempt:
        return ev.Soiled(f"it was used by {facts.who}{EXEMPT}", times=times)
    if facts.holders:
        pods = [name for holder in facts.holders if (name := facts.pods.get(holder.container or ""))]
        where = f" in {' and '.join(f'pod {name}' for name in dict.fromkeys(pods))}" if pods else ""
        return ev.Soiled(f"it was used without a grant{where}", facts.holders, times)
    if receipt is not None and receipt.finished.uptime < facts.used_at:
        if facts.use_unsure and (facts.users_exempt or not facts.used_by):
            return ev.Soiled(f"it is not known whether it was used: {facts.use_unsure}", times=times)
        if facts.users_exempt:
            return ev.Soiled(f"it was used by a process of {facts.used_by}{EXEMPT}", times=times)
        by = f"of {facts.used_by}" if facts.used_by else "that cannot be named"
        return ev.Soiled(f"it was used without a grant, by a process {by}", times=times, unnamed=True)
    leaked = leaked_bytes(facts)
    return ev.Soiled(leak(leaked), times=times) if leaked else None


def ended_by_older_ledger(record: Record, boot_id: str | None) -> ev.Distrusted | None:
    """What ends the trust in a device if the ledger may be an older copy.

    ``boot_id``: that of the present boot, if known.
    """
    if boot_id not in (None, record.incarnation.boot_id):
        return None  # after a reboot no proof counts anyway, and no container of before can start
    why = "the ledger may be an older copy, made before the device was used"
    return ev.Distrusted(why, record.incarnation, older_ledger=True)


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
