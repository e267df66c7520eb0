"""Who asked for a device that was not given to him, and who was let through last."""

from __future__ import annotations

import pytest

from scrubber.core.model import Opener
from scrubber.fence.live_openers import LiveOpeners

LET_THROUGH = {"refused": False, "exempt": False, "ignored": False}
REFUSED, EXEMPT, IGNORED = (
    LET_THROUGH | {"refused": True},
    LET_THROUGH | {"exempt": True},
    LET_THROUGH | {"ignored": True},
)


@pytest.mark.parametrize(
    ("attempts", "user"),
    [
        ([], ""),
        ([(9.0, "a", LET_THROUGH)], ""),
        ([(11.0, "a", LET_THROUGH), (12.0, "b", LET_THROUGH)], "b"),
        ([(11.0, "a", LET_THROUGH), (12.0, "b", REFUSED), (13.0, "c", IGNORED)], "a"),
        ([(9.0, "a", LET_THROUGH), (11.0, "b", EXEMPT), (12.0, "a", REFUSED)], "b"),
        ([(11.0, "a", LET_THROUGH), (12.0, "b", EXEMPT)], "a"),
        ([(11.0, "a", LET_THROUGH), (9.0, "a", LET_THROUGH)], "a"),
    ],
    ids=[
        "nobody",
        "before the proof",
        "the last one",
        "others were no users",
        "let through before, refused since",
        "an exempt one hides nobody",
        "an older one is read later",
    ],
)
def test_a_user_is_who_was_let_through_since_the_proof(attempts, user):
    now = [0.0]
    openers = LiveOpeners(lambda: now[0])
    for now[0], place, how in attempts:
        opener = Opener(place, "", "x", 1, how["exempt"], 1, int(how["refused"]), now[0], now[0])
        openers.add("gpu", opener, ignored=how["ignored"], held=False)
    assert [it.opener.place for it in openers.users("gpu", 10.0)][-1:] == [user] * bool(user)


def test_bystanders_that_are_let_in_push_no_other_out():
    """Monitors may be many, and each of their pods is a place of its own."""
    openers = LiveOpeners(lambda: 0.0)
    openers.add("gpu", Opener("stranger", "", "x", 1, False, 1, 0, 0.0, 0.0), ignored=False, held=False)
    for pod in range(40):
        openers.add("gpu", Opener(f"monitor-{pod}", "", "x", 1, True, 1, 0, 0.0, 0.0), ignored=True, held=False)
    places = [it.opener.place for it in openers.of("gpu")]
    assert (places[0], places[-1], len(places)) == ("stranger", "monitor-39", 16)
