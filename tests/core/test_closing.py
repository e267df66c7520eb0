"""What is kept of the fence until a tenancy can be closed, and what two readings tell about the time between them."""

from dataclasses import replace
from typing import Any

import pytest

from policies.values import FenceMode
from scrubber.core import closing, guarded
from scrubber.core import events as ev
from scrubber.core.guarded import ANEW, UNKNOWN, UNREAD, EndedTenancy, between
from scrubber.core.model import Owner
from scrubber.core.use_counter import FenceReading
from tests.core import lives
from tests.core.lives import NOW, later, live

HOLD = FenceReading(NOW, FenceMode.HOLD, counter="c", passed=10, ignored=4, refused=7, gaps=1, exempt="e")


def at(seconds: float, **counted: Any) -> FenceReading:  # noqa: ANN401 - by name
    """A later reading."""
    return replace(HOLD, at=later(seconds), **counted)


@pytest.mark.parametrize(
    ("began", "ended", "differs"),
    lives.rows(
        ("what others did is the difference", HOLD, at(9, passed=13, ignored=5, refused=9, gaps=2),
         {"let_through": 2, "ignored": 1, "refused": 2, "gaps": 1}),
        ("both modes are told", HOLD, at(9, mode=FenceMode.WATCH), {"mode": FenceMode.WATCH}),
        ("both digests of the exempt are told", HOLD, at(9, exempt=""), {"exempt": ""}),
        ("another counter counts from zero", HOLD, at(9, counter="d"), None),
        ("below a control group is told", replace(HOLD, below="/trial"), at(9), {"below": "/trial"}),
        ("fewer uses than before are of another counter", HOLD, at(9, passed=9), None),
        ("so are more ignored ones than were let through", HOLD, at(9, ignored=6), None),
        ("fewer refusals than before, too", HOLD, at(9, refused=6), None),
        ("fewer gaps than before, too", HOLD, at(9, gaps=0), None),
    ),
)  # fmt: skip
def test_two_readings_tell_what_others_did(began, ended, differs):
    same = guarded.Guarded(NOW, FenceMode.HOLD, "", FenceMode.HOLD, "e", "e")
    why = (differs or {"why": ANEW}).get("why")
    expected = guarded.Guarded(NOW, why=why) if why else replace(same, **(differs or {}))
    assert between(began, ended) == expected
    assert expected.flaws == tuple(FLAWS[name] for name in FLAWS if name in (differs or {}))


FLAWS = {"gaps": "with gaps", "below": "below /trial only"}
NO_FENCE = FenceReading(NOW, why="no fence")


@pytest.mark.parametrize(
    ("began", "ended", "why"),
    [(None, HOLD, UNREAD), (HOLD, None, UNREAD), (NO_FENCE, HOLD, "no fence"), (HOLD, NO_FENCE, "no fence")],
)
def test_without_a_reading_nothing_is_known(began, ended, why):
    said = between(began, ended)
    assert (said.mode, said.why) == (FenceMode.OFF, why)


def granted(fence: FenceReading | None = HOLD, **grant: Any) -> ev.Granted:  # noqa: ANN401 - by name
    return ev.Granted(replace(lives.grant(lives.CLEAN), **grant), fence)


SEEN = Owner(lives.A, NOW, seen=True)
OWNED = live(lives.CLEAN, granted(), ev.PutInUse(SEEN), ev.PutInUse(replace(SEEN, pod="team/train")))
LEFT = live(OWNED, ev.Released("gone", fence=at(60, refused=9)), at=later(60))


def test_an_ended_tenancy_is_kept_until_closed():
    ended = LEFT.fence.ended
    assert ended is not None
    assert ended == EndedTenancy(
        OWNED.tenancy.number, "boot-1", later(60), NOW, lives.A, "team/train", "", OWNED.fence.receipt,
        between(HOLD, at(60, refused=9)), at(60, refused=9),
    )  # fmt: skip
    assert ended.guarded.refused == 2
    scrubbing = live(LEFT, ev.ScrubStarted(lives.job()))
    clean = live(scrubbing, replace(lives.passed(scrubbing), fence=at(70, refused=12)))
    assert clean.fence.ended == ended
    until = closing.until_wiped(ended, clean.fence.proof)
    assert (until.refused, until.since) == (3, later(60))
    closed = live(clean, ev.TenancyClosed(ended, "r", until))
    assert (closed.fence.ended, closed.fence.proof) == (None, at(70, refused=12))


def test_what_an_older_version_has_wiped_is_not_closed_again():
    """It wrote no closing row after the scrub that passed."""
    scrubbing = live(LEFT, ev.ScrubStarted(lives.job()))
    clean = live(scrubbing, lives.passed(scrubbing))
    updated = live(clean, ev.Soiled("the service was restarted without a fence"))
    assert (clean.fence.ended is None, updated.fence.ended) == (False, None)
    assert updated.fence.proof == clean.fence.proof


def test_no_tenancy_that_has_not_ended_is_closed():
    scrubbing = live(LEFT, ev.ScrubStarted(lives.job()))
    clean = live(scrubbing, lives.passed(scrubbing))
    assert LEFT.fence.ended is not None
    present = replace(LEFT.fence.ended, number=clean.tenancy.number)
    with pytest.raises(ev.IllegalEventError):
        live(clean, ev.TenancyClosed(present, "r", UNKNOWN))


PAUSED = live(OWNED, ev.Released("restarts", restart=True, fence=at(60)), at=later(60))


def wiped(record):
    scrubbing = live(record, ev.ScrubStarted(lives.job()))
    clean = live(scrubbing, replace(lives.passed(scrubbing), fence=at(70)))
    assert clean.fence.ended is not None
    return live(clean, ev.TenancyClosed(clean.fence.ended, "r", UNKNOWN))


def test_a_wipe_between_two_containers_closes_the_first():
    assert LEFT.fence.ended is not None
    assert PAUSED.fence.ended == replace(LEFT.fence.ended, guarded=between(HOLD, at(60)), last=at(60))
    clean = wiped(PAUSED)
    again = live(clean, ev.Granted(replace(lives.grant(clean), at_start=True), at(80)), at=later(80))
    assert (again.fence.grant, again.fence.granted, again.fence.ended) == (HOLD, NOW, None), "the tenancy goes on"


def test_what_an_older_version_closed_later_is_read():
    """It closed such a tenancy at the wipe after the next one."""
    scrubbing = live(PAUSED, ev.ScrubStarted(lives.job()))
    clean = live(scrubbing, lives.passed(scrubbing))
    again = live(clean, ev.Granted(lives.grant(clean)), ev.Released("never used"), at=later(90))
    scrubbing = live(again, ev.ScrubStarted(lives.job()))
    assert PAUSED.fence.ended is not None
    closed = replace(PAUSED.fence.ended, ended=later(90))
    live(live(scrubbing, lives.passed(scrubbing)), ev.TenancyClosed(closed, "r", UNKNOWN))


@pytest.mark.parametrize("is_wiped", [True, False])
def test_a_pod_that_never_came_back_has_left(is_wiped):
    clean = wiped(PAUSED) if is_wiped else PAUSED
    another = live(clean, ev.Distrusted("the node was rebooted", lives.REBOOTED), at=later(90))
    assert another.tenancy.number == clean.tenancy.number + 1
    assert another.fence.ended == (None if is_wiped else PAUSED.fence.ended)


def test_a_second_container_of_a_pod_begins_nothing():
    second = live(live(lives.CLEAN, granted()), granted(at(5)), at=later(5))
    assert (second.fence.grant, second.fence.granted) == (HOLD, NOW)


def test_an_unused_grant_begins_and_ends_nothing():
    back = live(lives.CLEAN, granted(), ev.Released("not used", fence=at(5)))
    assert back.fence.ended is None
    scrubbing = live(back, ev.ScrubStarted(lives.job()))
    clean = live(scrubbing, lives.passed(scrubbing))
    assert live(clean, ev.Granted(lives.grant(clean), at(90)), at=later(90)).fence.grant == at(90)


def test_a_device_that_was_open_to_all_says_so():
    mine = live(lives.CLEAN, granted(announced=False, until_release=True, owner="claim 7"))  # no group is named
    later_on = live(mine, ev.LetIn((lives.A,)), at=later(5))
    ended = live(later_on, ev.Released("given back", fence=at(60)), at=later(60)).fence.ended
    assert ended is not None
    assert ended.guarded.open_to_all
    assert ended.guarded.flaws == ("open to all for a time",)
    scrubbing = live(later_on, ev.Released("given back", fence=at(60)), ev.ScrubStarted(lives.job()), at=later(60))
    assert closing.since_proof(replace(scrubbing, fence=replace(scrubbing.fence, proof=HOLD)), at(70)).open_to_all
    assert LEFT.fence.ended is not None
    assert not LEFT.fence.ended.guarded.open_to_all


def test_what_one_write_opens_and_closes_was_never_open():
    mine = live(lives.CLEAN, granted(announced=False, until_release=True, owner="claim 7"), ev.LetIn((lives.A,)))
    ended = live(mine, ev.Released("given back", fence=at(60)), at=later(60)).fence.ended
    assert ended is not None
    assert ended.guarded.flaws == ()


def test_a_reboot_ends_a_tenancy_of_which_nothing_is_known():
    ended = live(OWNED, ev.Distrusted("the node was rebooted", lives.REBOOTED, fence=at(5, counter="d"))).fence.ended
    assert ended is not None
    assert (ended.boot_id, ended.guarded.why) == ("boot-1", ANEW)
