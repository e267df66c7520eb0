"""Which look is enough: each row of the table, on both sides of its conditions."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core.fencing import OpenTo, open_to
from scrubber.core.model import Ailment, AilmentKind, State
from scrubber.core.observation import NOT_ASKED, FenceTells, Known, Listed, Look, Purpose, enough
from scrubber.core.record import Record
from tests.core import lives
from tests.core.lives import live, rows

ROUND, RESERVE, GRANT, START, CHANGE, STEP, RESET = Purpose
LIST, FENCE, SEARCH = Look
NOTHING, UNSURE, IGNORED, NO_HOLDER, HOLDER = Listed
CLAIMED = live(lives.OF_CLAIM, ev.LetIn((lives.A,)))
STUCK = live(lives.DIRTY, ev.Quarantined(lives.quarantine(Ailment(AilmentKind.STUCK_PROCESS, "it does not end"))))


def known(
    record: Record,
    listed: Listed = NO_HOLDER,
    *,
    alone: bool = False,
    opened: bool = False,
    alive: bool | None = None,
    searched_ago: float = math.inf,
) -> Known:
    return Known(record, listed, FenceTells(True, alone, opened, searched_ago), alive)


def owned(listed: Listed = NO_HOLDER, *, opened: bool = False, searched_ago: float = math.inf) -> Known:
    """In use by a pod that lives."""
    return known(lives.IN_USE, listed, opened=opened, alive=True, searched_ago=searched_ago)


@pytest.mark.parametrize(
    ("purpose", "looks"),
    rows(
        ("a reset", RESET, [(known(it, alone=True), SEARCH) for it in (lives.SCRUBBING, lives.CLEAN)]),
        (
            "a reservation", RESERVE,
            [
                (known(lives.CLEAN, NOTHING), SEARCH),
                (known(lives.CLEAN), LIST),
                (known(lives.GRANTED, NOTHING), SEARCH),
                (known(lives.IN_USE, NOTHING), SEARCH),
                (known(lives.GRANTED), SEARCH),
                (known(lives.GRANTED, alone=True), FENCE),
            ],
        ),
        (
            "a later step of a scrub", STEP,
            [
                (known(lives.SCRUBBING), LIST),
                (known(lives.SCRUBBING, UNSURE), SEARCH),
                (known(lives.SCRUBBING, HOLDER), SEARCH),
                (known(lives.DIRTY), SEARCH),
            ],
        ),
        (
            "a start", START,
            [
                (known(lives.GRANTED, alone=True), FENCE),
                (known(lives.GRANTED), SEARCH),
                (known(lives.GRANTED, UNSURE, alone=True), SEARCH),
                (known(lives.GRANTED, HOLDER, alone=True), SEARCH),
                (known(lives.UNANNOUNCED, alone=True), SEARCH),
                (known(CLAIMED, alone=True), SEARCH),
                (known(lives.IN_USE, alone=True, alive=False), SEARCH),
            ],
        ),
        (
            "a change", CHANGE,
            [
                (known(lives.SCRUBBING, alone=True), FENCE),
                (known(lives.SCRUBBING, HOLDER, alone=True), SEARCH),
                (known(lives.UNANNOUNCED, alone=True), SEARCH),
                (known(lives.IN_USE, alone=True, alive=False), FENCE),
                (known(lives.IN_USE, alone=True, alive=True), SEARCH),
                (known(lives.IN_USE, alone=True), SEARCH),
                (known(lives.IN_USE, alive=False), SEARCH),
                (known(lives.IN_USE, HOLDER, alone=True, alive=False), SEARCH),
                (known(lives.VISITED_KEPT, alone=True, alive=False), SEARCH),
            ],
        ),
        (
            "a grant", GRANT,
            [
                (known(lives.CLEAN, alone=True), FENCE),
                (known(lives.CLEAN, IGNORED, alone=True), LIST),
                (known(lives.CLEAN, NOTHING, alone=True), SEARCH),
                (known(lives.SCRUBBING), SEARCH),
                (known(lives.CLEAN, HOLDER), SEARCH),
                (known(lives.IN_USE, HOLDER, alone=True, alive=True), LIST),
                (known(lives.UNANNOUNCED, alone=True), SEARCH),
                (known(CLAIMED, alone=True, searched_ago=0.0), SEARCH),
                (known(lives.USED_BY_HOST, alone=True, searched_ago=0.0), SEARCH),
            ],
        ),
        (
            "a round, during a scrub", ROUND,
            [
                (known(lives.SCRUBBING, UNSURE, opened=True), LIST),
                (known(lives.SCRUBBING, NOTHING), SEARCH),
                (known(lives.SCRUBBING, alive=False), SEARCH),
            ],
        ),
        (
            "a round, while it is in use", ROUND,
            [
                (owned(HOLDER), LIST),
                (known(lives.IN_USE, HOLDER, alive=False), SEARCH),
                (known(lives.IN_USE, HOLDER), SEARCH),
                (known(lives.IN_USE, alone=True, alive=False), FENCE),
                (owned(HOLDER, opened=True, searched_ago=9.9), LIST),
                (owned(HOLDER, opened=True, searched_ago=10.0), SEARCH),
                (known(lives.USED_BY_HOST, HOLDER, opened=True), LIST),
                (owned(UNSURE, searched_ago=59.9), LIST),
                (owned(NOTHING, searched_ago=0.0), SEARCH),
                (owned(searched_ago=60.0), SEARCH),
                (known(lives.IN_USE, searched_ago=0.0), SEARCH),
                (known(lives.USED_BY_B, alive=True, searched_ago=0.0), SEARCH),
            ],
        ),
        (
            "a round, before a scrub", ROUND,
            [
                (known(it, listed, alone=alone), look)
                for it in (lives.DIRTY, lives.UNKNOWN)
                for listed, alone, look in (
                    (HOLDER, False, LIST), (NO_HOLDER, True, FENCE), (IGNORED, True, FENCE), (NO_HOLDER, False, SEARCH),
                    (UNSURE, True, SEARCH),
                )
            ],
        ),
        (
            "a round, at rest", ROUND,
            [
                (known(it, listed, opened=opened), look)
                for it in (lives.CLEAN, lives.GRANTED, lives.QUARANTINED)
                for listed, opened, look in (
                    (NO_HOLDER, False, LIST), (HOLDER, False, LIST), (UNSURE, False, SEARCH),
                    (NO_HOLDER, True, SEARCH), (HOLDER, True, SEARCH),
                )
            ],
        ),
        (
            "a round, with everybody let in", ROUND,
            [(known(lives.UNANNOUNCED, opened=True), LIST), (known(CLAIMED, HOLDER, opened=True), SEARCH)],
        ),
        (
            "a round, until a release", ROUND,
            [
                (known(lives.KEPT, HOLDER), LIST),
                (known(lives.KEPT, searched_ago=59.9), LIST),
                (known(lives.KEPT, searched_ago=60.0), SEARCH),
                (known(lives.KEPT, UNSURE, searched_ago=0.0), SEARCH),
            ],
        ),
        (
            "a round, while a process does not end", ROUND,
            [(known(STUCK, HOLDER, opened=True), LIST), (known(STUCK), SEARCH), (known(STUCK, alone=True), FENCE)],
        ),
    ),
)  # fmt: skip
def test_the_table_says_which_look_is_enough(purpose: Purpose, looks: list[tuple[Known, Look]]) -> None:
    assert [(it, enough(purpose, it)) for it, _ in looks] == looks


@pytest.mark.parametrize("purpose", Purpose)
def test_where_nothing_is_known_everything_is_searched(purpose: Purpose) -> None:
    for record in lives.LIVES.values():
        assert enough(purpose, Known(record, NOTHING, NOT_ASKED, owner_alive=None)) is SEARCH
        if record.state is not State.SCRUBBING and open_to(record) is not OpenTo.ALL:
            assert enough(purpose, Known(record, NO_HOLDER, NOT_ASKED, owner_alive=None)) is SEARCH


@pytest.mark.parametrize("purpose", [GRANT, START, CHANGE, RESET])
def test_no_list_alone_is_enough_before_a_use(purpose: Purpose) -> None:
    for record, listed, alive in itertools.product(lives.LIVES.values(), Listed, (None, True, False)):
        without = known(record, listed, alive=alive, searched_ago=0.0)
        assert enough(purpose, without) is SEARCH
        if record.state is State.GRANTED and open_to(record) is not OpenTo.SERVICE:
            alone = known(record, listed, alone=True, alive=alive, searched_ago=0.0)
            assert enough(purpose, alone) is SEARCH, "who is let in is not counted"


@pytest.mark.parametrize("purpose", Purpose)
def test_a_fence_below_a_group_makes_no_look_weaker(purpose: Purpose) -> None:
    """It counts nobody outside, who may have the device open."""
    sides = itertools.product(lives.LIVES.values(), Listed, (False, True), (None, True, False), (0.0, math.inf))
    for record, listed, opened, alive, searched_ago in sides:
        without = known(record, listed, opened=opened, alive=alive, searched_ago=searched_ago)
        proven = replace(without.fence, counts_all=False, no_other_user=True)
        look = enough(purpose, replace(without, fence=proven))
        assert (look, look is FENCE) == (enough(purpose, without), False)
