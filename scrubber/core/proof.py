"""Whether the proof that a device is clean is valid, and what ends it."""

from __future__ import annotations

from ground.quantities import quantity
from policies.policy_model import Policy
from scrubber.core import events as ev
from scrubber.core.model import Facts, Moment, Receipt, State
from scrubber.core.record import Record

EXEMPT = ", which the policy exempted"  # such a use is authorised: it ends the proof, and pages nobody


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
