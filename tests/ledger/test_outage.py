"""What each event makes of an outage."""

import pytest

from ground.errors import LedgerUnavailable
from scrubber.core.events import WritesFailed
from scrubber.core.model import Moment
from scrubber.ledger import outage
from scrubber.ledger.outage import Outage, Works

FULL, SLOW = LedgerUnavailable("the disk is full"), LedgerUnavailable("a write is slow")


def at(uptime):
    return Moment(1_750_000_000.0 + uptime, uptime)


def since(uptime, until=None, why="the disk is full"):
    return WritesFailed(at(uptime), at(uptime if until is None else until), why)


FAILED = Outage(since(10), FULL, stale=True)
HANGS = Outage(since(10, why="a write is slow"), SLOW, stale=False)
ENDED = Works(since(10, until=15))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Works(), Outage(since(20, why="a write is slow"), SLOW, stale=False)),
        (ENDED, Outage(since(10, until=15), SLOW, stale=False)),
        (FAILED, Outage(since(10), SLOW, stale=True)),
        (HANGS, HANGS),
    ],
)
def test_an_outage_with_a_hanging_write_keeps_its_begin(before, after):
    assert outage.hangs(before, SLOW, at(20)) == after


@pytest.mark.parametrize(
    ("before", "first"),
    [
        (Works(), since(20)),
        (ENDED, since(10, until=15)),
        (FAILED, since(10)),
        (HANGS, since(10, why="a write is slow")),
    ],
)
def test_after_each_failed_write_the_records_are_stale(before, first):
    assert outage.failed(before, FULL, at(20)) == Outage(first, FULL, stale=True)


@pytest.mark.parametrize(
    ("before", "now", "after"),
    [
        (FAILED, 99, FAILED),  # this was a load: a ledger that can be loaded may still be read-only
        (HANGS, 14.9, Works()),
        (HANGS, 15, Works(since(10, until=15, why="a write is slow"))),
    ],
)
def test_a_load_ends_no_outage_but_a_slow_write_does(before, now, after):
    assert outage.wrote(before, at(now)) == after


@pytest.mark.parametrize(("disk", "stale"), [(Works(), False), (ENDED, False), (HANGS, False), (FAILED, True)])
def test_only_a_failed_write_makes_the_records_stale(disk, stale):
    assert outage.is_stale(disk) is stale


@pytest.mark.parametrize(
    ("disk", "event"),
    [(Works(), None), (ENDED, since(10, until=15)), (FAILED, since(10, 30)), (HANGS, since(10, 30, "a write is slow"))],
)
def test_an_outage_lasts_until_its_row_if_nothing_was_written(disk, event):
    assert outage.to_tell(disk, at(30)) == event
