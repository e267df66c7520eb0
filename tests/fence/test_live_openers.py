"""Who asked for a device that was not given to him, and who was let through last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrubber.core import open_attempts
from scrubber.core.fencing import OpenTo, open_to
from scrubber.core.model import Opener
from scrubber.core.open_attempts import Period
from scrubber.fence.live_openers import Answer, LiveOpeners
from tests.core import lives

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
        openers.add("gpu", opener, ignored=how["ignored"], at=0.0)
    assert [it.opener.place for it in openers.users("gpu", 10.0)][-1:] == [user] * bool(user)


def test_bystanders_that_are_let_in_push_no_other_out():
    """Monitors may be many, and each of their pods is a place of its own."""
    openers = LiveOpeners(lambda: 0.0)
    openers.add("gpu", Opener("stranger", "", "x", 1, False, 1, 0, 0.0, 0.0), ignored=False, at=0.0)
    for pod in range(40):
        openers.add("gpu", Opener(f"monitor-{pod}", "", "x", 1, True, 1, 0, 0.0, 0.0), ignored=True, at=0.0)
    places = [it.opener.place for it in openers.of("gpu")]
    assert (places[0], places[-1], len(places)) == ("stranger", "monitor-39", 16)


@pytest.mark.parametrize(
    ("at", "is_in"), [(-90.0, lives.CLEAN), (9.0, lives.CLEAN), (10.0, lives.GRANTED), (25.0, lives.DIRTY)]
)
def test_an_attempt_belongs_to_its_own_time(at, is_in):
    """It may be read later. The first record holds for the time without a service, too."""
    openers = LiveOpeners(lambda: 0.0)
    for since, record in enumerate((lives.CLEAN, lives.GRANTED, lives.DIRTY, lives.SCRUBBING)):
        openers.began(record, open_to(record), since * 10.0)
    openers.add(lives.DEVICE.uuid, lives.OPENER, ignored=False, at=at)
    period = open_attempts.period(is_in)
    assert openers.take(lives.DEVICE.uuid) == [(period, (lives.OPENER,))]
    assert {*openers.asked(lives.DEVICE.uuid)} == {Answer(refused=False, held=period.held)}


def test_of_an_attempt_in_an_unknown_time_somebody_had_it():
    openers, number = LiveOpeners(lambda: 0.0), lives.CLEAN.tenancy.number
    openers.add(lives.DEVICE.uuid, lives.OPENER, ignored=False, at=0.0)
    assert {*openers.asked(lives.DEVICE.uuid)} == {Answer(refused=False, held=True)}
    for since in range(1000):
        record = replace(lives.CLEAN, tenancy=replace(lives.CLEAN.tenancy, number=number + since))
        openers.began(record, OpenTo.SERVICE, float(since))
    openers.add(lives.DEVICE.uuid, lives.OPENER, ignored=False, at=0.0)
    [(period, _)] = openers.take(lives.DEVICE.uuid)
    assert period.held
    assert period < Period(number + 990, held=False)
