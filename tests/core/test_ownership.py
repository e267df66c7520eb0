"""Who uses a device, since when, and what that does to its proof."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubber.core import events as ev
from scrubber.core import owners, ownership
from scrubber.core.model import Holder, Owner
from tests.core import lives
from tests.core.lives import LEFTOVER, NOW, OF_A, OF_B, A, B, facts, later, live, rows

HANGS = Holder(41, 100.0, "python", A, "D")
NEEDS_CHECKPOINT = rows(
    ("no owner", None, (), False),
    ("an owner without a name", Owner(None, NOW, seen=True), (HANGS,), False),
    ("admitted and seen", Owner(A, NOW, seen=True), (OF_A,), False),
    ("the same, without a holder", Owner(A, NOW, seen=True), (), False),
    ("the same, and its process hangs", Owner(A, NOW, seen=True), (HANGS,), True),
    ("one of two processes hangs", Owner(A, NOW, seen=True), (HANGS, OF_A), False),
)


@pytest.mark.parametrize(("owner", "holders", "needed"), NEEDS_CHECKPOINT)
def test_the_checkpoint_is_read_only_where_nothing_else_can_tell(owner, holders, needed):
    assert ownership.needs_assignment(owner, facts(holders)) is needed
    assert not ownership.needs_assignment(Owner(A, NOW, seen=True), facts((LEFTOVER,), alive=False))
    assert ownership.needs_assignment(Owner(A, NOW, seen=True), facts((OF_B,), alive=False)), "is it the next owner?"


def test_a_tenancy_without_announced_starts_begins_with_its_first_grant():
    again = live(lives.UNANNOUNCED, ev.Granted(lives.grant(lives.UNANNOUNCED, announced=False)), at=later(7))
    assert again.tenancy.span == (NOW.uptime, math.inf)


def test_pods_on_a_device_kept_until_release_are_expected():
    """A ResourceClaim may have several pods, and no pod of a claim announces its start."""
    first = ownership.unannounced_use(lives.KEPT, facts((OF_A,)), NOW)
    assert first == ev.PutInUse(Owner(A, NOW, seen=True))
    assert ownership.shared_use(live(lives.KEPT, first), facts((OF_A, OF_B))) is None


AWAITED, PRESENT = Owner(A, NOW), Owner(A, NOW, seen=True)
USED_BY_HOST, UNANNOUNCED = Owner(None, NOW, unannounced=True), Owner(A, NOW, seen=True, unannounced=True)
MOVES = rows(
    ("a start is admitted", None, AWAITED, True),
    ("the first owner is crowded", None, replace(PRESENT, crowded=True), False),
    ("the unannounced owner is crowded", None, replace(UNANNOUNCED, crowded=True), False),
    ("the process is in a container after all", USED_BY_HOST, UNANNOUNCED, True),
    ("the owner runs", AWAITED, PRESENT, True),
    ("the owner runs, and is crowded", AWAITED, replace(PRESENT, crowded=True), False),
    ("the owner runs, since another time", AWAITED, replace(PRESENT, since=later(1)), False),
    ("the owner is forgotten for a process", PRESENT, USED_BY_HOST, False),
    ("it was not seen after all", PRESENT, AWAITED, True),  # admitted again, in the same moment
    ("it is admitted again, at an earlier time", PRESENT, replace(AWAITED, since=later(-1)), False),
    ("an awaited owner is crowded", AWAITED, replace(AWAITED, crowded=True), True),
    ("an unannounced pod is crowded", UNANNOUNCED, replace(UNANNOUNCED, crowded=True), True),
    ("it is crowded, and forgotten", PRESENT, replace(AWAITED, crowded=True), False),
    ("it is no longer crowded", replace(PRESENT, crowded=True), PRESENT, False),
    ("an unannounced pod is confirmed", UNANNOUNCED, PRESENT, True),
    ("an unannounced pod is confirmed, since another time", UNANNOUNCED, replace(PRESENT, since=later(1)), False),
    ("the checkpoint names another holder", UNANNOUNCED, Owner(B, later(1), seen=True, crowded=True), True),
    ("another unannounced pod takes its place", UNANNOUNCED, replace(UNANNOUNCED, container=B), False),
    ("its container is created", PRESENT, replace(PRESENT, name="team/a/main"), True),
    ("an awaited container is created", AWAITED, replace(AWAITED, name="team/a/main"), True),
    ("its name is forgotten", replace(PRESENT, name="team/a/main"), PRESENT, False),
    ("the name of its pod is known", AWAITED, replace(AWAITED, pod="team/a"), True),
    ("the name of a pod that was seen is known", PRESENT, replace(PRESENT, pod="team/a"), True),
    ("the name of an unannounced pod is known", UNANNOUNCED, replace(UNANNOUNCED, pod="team/a"), True),
    ("its pod is called otherwise", replace(PRESENT, pod="team/a"), replace(PRESENT, pod="team/b"), False),
    ("its container has a name already", replace(PRESENT, name="team/a/main"),
     replace(PRESENT, name="team/a/main", pod="team/a"), False),
    ("the first owner has a name", None, replace(AWAITED, pod="team/a"), False),
    ("another pod is confirmed in the place of an owner", PRESENT, Owner(B, later(1), seen=True, crowded=True), False),
)  # fmt: skip


@pytest.mark.parametrize(("before", "after", "legal"), MOVES)
def test_an_owner_changes_by_a_legal_move_only(before, after, legal):
    assert owners.legal(before, after) is legal


OWNERS = st.builds(
    Owner,
    st.sampled_from([None, A, B]),
    st.integers(0, 3).map(later),
    seen=st.booleans(),
    crowded=st.booleans(),
    unannounced=st.booleans(),
    name=st.sampled_from(["", "team/a/main"]),
    pod=st.sampled_from(["", "team/a"]),
)


@given(st.lists(OWNERS, max_size=30))
def test_whatever_happens_an_owner_forgets_nothing(sequence):
    record = lives.GRANTED
    for owner in sequence:
        before, event = record.tenancy.owner, ev.PutInUse(owner)
        if not owners.legal(before, owner):
            with pytest.raises(ev.IllegalEventError):
                live(record, event)
            continue
        record = live(record, event)
        assert record.tenancy.owner == owner
        if before is None or before.container is None:
            continue
        assert owner.container is not None
        assert not owner.unannounced or before.unannounced
        if owner.container == before.container:
            assert owner.crowded or not before.crowded
            assert owner.name or not before.name
            assert owner.pod == before.pod or not before.called
            assert owner.since.uptime >= before.since.uptime
            assert owner.seen or not before.seen or not owner.unannounced


@given(st.none() | OWNERS, OWNERS)
def test_a_late_sighting_is_recorded_where_it_is_new(before, sighting):
    recorded = owners.late(before, sighting)
    if recorded is not None:
        assert owners.legal(before, recorded)
    elif sighting.container is not None:
        assert sighting.container == before.container


LATE = rows(
    ("it fits", AWAITED, PRESENT, PRESENT),
    ("it is recorded already", PRESENT, UNANNOUNCED, None),
    ("another pod", PRESENT, replace(UNANNOUNCED, container=B), replace(PRESENT, crowded=True)),
    ("crowded, and the owner has ended", None, replace(PRESENT, crowded=True), PRESENT),
    ("crowded, and the owner is not known", USED_BY_HOST, replace(PRESENT, crowded=True), PRESENT),
)


@pytest.mark.parametrize(("owner", "sighting", "recorded"), LATE)
def test_a_late_sighting_changes_the_present_owner(owner, sighting, recorded):
    assert owners.late(owner, sighting) == recorded


CALLED = ev.PutInUse(replace(PRESENT, pod="team/a"))
NAMELESS = rows(
    ("a pod", lives.IN_USE, True),
    ("a pod with a name", live(lives.IN_USE, CALLED), False),
    ("a container outside any pod", lives.VISITED_BY_NO_POD, False),
    ("a process outside containers", lives.USED_BY_HOST, False),
    ("nobody", lives.CLEAN, False),
)


@pytest.mark.parametrize(("record", "nameless"), NAMELESS)
def test_a_nameless_pod_is_called_by_its_directory(record, nameless):
    assert ownership.is_nameless(record) is nameless
    assert ownership.called(record, {record.tenancy.container: "team/a"}) == (CALLED if nameless else None)
    assert ownership.called(record, {B: "team/b"}) is None
