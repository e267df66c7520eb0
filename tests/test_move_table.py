"""Each arena plays each move of the table, or says why it does not; the histories say so beside their rules."""

import pytest

from tests.machine import cuts
from tests.move_table import MOVES
from tests.soak.moves import Moves
from tests.trace import MOVE, ROW, Event, Trace


def test_the_campaign_plays_each_move_or_says_why_not():
    deeds = {name for name in MOVES if hasattr(Moves, f"_{name}")}
    assert {name for name, it in MOVES.items() if not it.not_in_campaign} == deeds
    assert {name for name, it in MOVES.items() if it.weight} == deeds


def test_the_power_cuts_play_each_move_or_say_why_not():
    assert {name for name, it in MOVES.items() if not it.not_in_cuts} == {*cuts.MOVE_OF.values(), cuts.CUT}


@pytest.mark.parametrize(("device", "shown"), [("", "abc"), ("GPU-1", "ac")])
def test_a_story_is_in_the_order_of_time(device, shown):
    trace = Trace(lambda: 3.0)
    trace.say(MOVE, "c")
    trace.events += [Event(2.0, ROW, lambda: "b", "GPU-2"), Event(1.0, ROW, lambda: "a", "GPU-1")]
    assert [line[-1] for line in trace.story(device).splitlines()] == list(shown)
