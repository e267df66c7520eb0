"""Who uses a device, since when, and what that does to its proof."""

from __future__ import annotations

import math

import pytest

from scrubber.core import events as ev
from scrubber.core import leftover, ownership, proof
from scrubber.core.model import Holder, Owner, Vitals
from tests.core import lives
from tests.core.lives import NOW, OF_A, OF_B, A, facts, later, live, rows

HANGS = Holder(41, 100.0, "python", A, "D")
NEEDS_CHECKPOINT = rows(
    ("no owner", None, (), False),
    ("an owner without a name", Owner(None, NOW, seen=True), (HANGS,), False),
    ("admitted and seen", Owner(A, NOW, seen=True), (OF_A,), False),
    ("the same, without a holder", Owner(A, NOW, seen=True), (), False),
    ("the same, and its process hangs", Owner(A, NOW, seen=True), (HANGS,), True),
    ("one of two processes hangs", Owner(A, NOW, seen=True), (HANGS, OF_A), False),
    ("admitted and never seen", Owner(A, NOW), (), True),
    ("unannounced", Owner(A, NOW, seen=True, unannounced=True), (OF_A,), True),
)


@pytest.mark.parametrize(("owner", "holders", "needed"), NEEDS_CHECKPOINT)
def test_the_checkpoint_is_read_only_where_nothing_else_can_tell(owner, holders, needed):
    assert ownership.needs_checkpoint(owner, facts(holders)) is needed


def test_a_tenancy_without_announced_starts_begins_with_its_first_grant():
    again = live(lives.UNANNOUNCED, ev.Granted(lives.grant(lives.UNANNOUNCED, announced=False)), at=later(7))
    assert leftover.span(again) == (NOW.uptime, math.inf)


def test_a_holder_or_leaked_memory_ends_the_proof():
    assert proof.ended_by_use(facts()) is None
    assert proof.ended_by_use(facts((OF_B,))) == ev.Soiled("it was used without a grant", (OF_B,))
    leaking = facts(vitals=Vitals(leaked_bytes=7))
    assert proof.ended_by_use(leaking) == ev.Soiled("7 bytes are in use, but no visible process holds them")


def test_pods_on_a_device_that_is_kept_until_its_release_are_expected():
    """A ResourceClaim may have several pods, and no pod of a claim announces its start."""
    first = ownership.unannounced_use(lives.KEPT, facts((OF_A,)), NOW)
    assert first == ev.PutInUse(Owner(A, NOW, seen=True))
    assert ownership.shared_use(live(lives.KEPT, first), facts((OF_A, OF_B))) is None
