"""What the rounds of a cell show, and what they never show."""

from __future__ import annotations

import pytest

from remnant import judge
from remnant.judge import Verdict
from remnant.round_result import Ending, Look, Medium, Planted, Round
from remnant.tenant import recognised, words

GIB = 2**30
KEY, OTHER = "0" * 32, "1" * 32
FULL = Planted(GIB, GIB)
NOTHING = Look(read=GIB, searched=GIB, recognised=0, never_written=0, not_zero=0)


def rounds(*looks: Look, planted: Planted = FULL, refused: str = "", how: Ending = Ending.EXIT) -> list[Round]:
    """A round of each look, in memory."""
    shown = [{Medium.MEMORY: it} for it in looks] or [{}]
    return [Round(how, 0.5, GIB, {Medium.MEMORY: planted}, it, refused) for it in shown]


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (rounds(NOTHING, NOTHING), Verdict.NONE),
        (rounds(NOTHING, Look(GIB, GIB, 16, 0, 16)), Verdict.REMNANT),
        (rounds(Look(GIB, GIB, 0, 0, 1)), Verdict.NOT_ZERO),
        (rounds(Look(GIB, GIB, 0, 0, None)), Verdict.NONE),
        (rounds(Look(GIB // 2, GIB, 0, 0, 0)), Verdict.HELD),
        (rounds(Look(GIB - GIB // 32, GIB, 0, 0, 0)), Verdict.NONE),  # a context can take so much
        (rounds(refused="out of memory"), Verdict.HELD),
        (rounds(), Verdict.NO_ANSWER),
        # The controls: words that nobody wrote are found, or the own ones are not.
        (rounds(Look(GIB, GIB, 32, 16, 48)), Verdict.NO_ANSWER),
        (rounds(NOTHING) + rounds(NOTHING, planted=Planted(GIB, GIB - 1)), Verdict.NO_ANSWER),
        (rounds(NOTHING, planted=Planted(0, 0)), Verdict.NO_ANSWER),
        # What was found counts although the control failed.
        (rounds(Look(GIB, GIB, 16, 0, 16), planted=Planted(GIB, GIB - 1)), Verdict.REMNANT),
    ],
)
def test_a_cell_says_what_its_rounds_show(seen: list[Round], verdict: Verdict) -> None:
    assert judge.cell(Medium.MEMORY, seen).verdict is verdict


@pytest.mark.parametrize(("planted", "seen"), [(FULL, Look(0, 0, 0, 0, 0)), (Planted(GIB, GIB - 1), NOTHING)])
def test_host_memory_must_be_recognised_and_looked_at(planted: Planted, seen: Look) -> None:
    one = Round(Ending.EXIT, 0.5, GIB, {Medium.HOST: planted}, {Medium.HOST: seen})
    assert judge.cell(Medium.HOST, [one]).verdict is Verdict.NO_ANSWER


def test_no_finding_bounds_how_often_a_remnant_is_there() -> None:
    assert judge.cell(Medium.MEMORY, rounds(*[NOTHING] * 20)).why == (
        "so in at most 14 % of cases (with a confidence of 95 %)"
    )
    assert (round(judge.bound(300), 3), round(judge.bound(1), 3)) == (0.01, 0.95)


def test_words_are_recognised_at_any_alignment() -> None:
    text = words(KEY)
    assert recognised(b"\1" * 5 + text * 3 + b"\1" * 7 + text, KEY) == 64
    assert recognised(text[1:] + text[:8], KEY) == 0  # no whole word
    assert recognised(text * 3, OTHER) == 0
    assert 0 not in text
