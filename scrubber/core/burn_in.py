"""When an idle device is tested, and when such a test ends for a request."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from policies.policy_model import Mode, Policy
from scrubber.core import presence, proof
from scrubber.core.model import Moment, ScrubPath, State, Trigger
from scrubber.core.record import Record

SPREAD = 0.25  # the pause of a device is longer than the policy's by up to this share; its UUID says by how much


def is_due(record: Record, records: Collection[Record], policy: Policy, now: Moment) -> bool:
    """Whether to test an idle device. Each has a pause of its own length, so that a fleet is not tested all at once."""
    rules = policy.periodic
    if not rules.every or policy.mode is Mode.OBSERVE or record.state is not State.CLEAN:
        return False
    if spare_devices(record, records) < rules.keep_free or proof.next_path(record, policy) is not ScrubPath.FAST:
        return False  # a path that is due, or follows every tenant, tests as much
    # A time in the future is from before the clock was set back: it says nothing.
    known = [
        wall for wall in (record.scrubs.tested, record.scrubs.burn_in_begun) if wall is not None and wall <= now.wall
    ]
    last = max(known, default=record.since.wall)
    own = int(hashlib.sha256(record.device.uuid.encode()).hexdigest()[:4], 16) / 2**16
    return not 0 <= now.wall - last < rules.every * (1 + SPREAD * own)


def spare_devices(record: Record, records: Collection[Record]) -> int:
    """How many other devices of its resource stay clean while this device and its reset domain are tested.

    Negative while another device is tested, or where a sibling is not idle.
    """
    near = {it.device.uuid: it for it in presence.siblings(record, records)}
    tested = any(it.scrubs.job is not None and it.scrubs.job.trigger is Trigger.BURN_IN for it in records)
    if tested or any(it.state is not State.CLEAN and not presence.is_gone(it) for it in near.values()):
        return -1
    return sum(
        it.state is State.CLEAN and it.device.resource == record.device.resource
        for it in records
        if it.device.uuid not in {record.device.uuid, *near}
    )


def gives_way(record: Record) -> bool:
    """Whether the device's job is a test that ends when a pod needs the device. One that found a fault goes on."""
    job = record.scrubs.job
    if job is None or record.health.quarantine is not None or job.path is ScrubPath.RESET:
        return False
    return job.trigger is Trigger.BURN_IN
