"""The clocks tell when the service stood still and when the wall clock was set; few rows report it."""

import pytest

from scrubber.core import events as ev
from scrubber.core import standstills
from scrubber.core.model import Moment
from scrubber.core.standstills import PAUSE, Clocks, Seen

HOUR = 3600.0
BOOT = 1_000_000.0


class Node:
    """Takes one pause after the other. Each call makes one that is late, and returns the new rows."""

    def __init__(self) -> None:
        self.clocks = Clocks(Moment(BOOT + 100.0, 100.0), 90.0)
        self.seen = Seen(self.clocks.boot)

    def pause(self, late: float = 0.0, *, suspended: float = 0.0, clock: float = 0.0):
        began, lasts = self.clocks, PAUSE + late
        at = Moment(began.now.wall + lasts + clock, began.now.uptime + lasts)
        self.clocks = Clocks(at, began.awake + lasts - suspended)
        self.seen, events = standstills.after_pause(self.seen, began, self.clocks)
        return events

    def run(self, seconds: float, late: float = 0.0, each: float = 0.0):
        """So many seconds without a fault, or with a pause that is late in each of these times."""
        until, rows, next_late = self.clocks.now.uptime + seconds, [], self.clocks.now.uptime + each
        while self.clocks.now.uptime < until:
            is_late = each and self.clocks.now.uptime >= next_late
            next_late += each if is_late else 0.0
            rows += self.pause(late if is_late else 0.0)
        return rows


@pytest.mark.parametrize("seconds", [5.0, 27.0, 72 * HOUR])
def test_a_long_standstill_is_reported_at_once(seconds):
    node = Node()
    node.run(10)
    began = node.clocks.now
    assert node.pause(seconds) == (ev.StoodStill(began, seconds),)
    assert node.run(2 * HOUR) == []


def test_a_suspended_machine_is_distinguished():
    node = Node()
    assert node.pause(300.0, suspended=298.0) == (ev.StoodStill(Moment(BOOT + 100.0, 100.0), 300.0, 1, 298.0),)


@pytest.mark.parametrize("late", [0.3, 1.0])
def test_a_busy_machine_leaves_no_row(late):
    assert Node().run(2 * HOUR, late, each=3) == []


@pytest.mark.parametrize(("late", "each", "most"), [(4.0, 10, 6), (60.0, 61, 360), (5.0, 6, 360)])
def test_standstills_of_six_hours_are_few_rows(late, each, most):
    node = Node()
    rows = node.run(6 * HOUR, late, each)
    assert 0 < len(rows) <= most
    assert sum(row.seconds for row in rows) == pytest.approx(late * sum(row.times for row in rows))
    assert sum(row.seconds for row in rows) > HOUR


def test_long_standstills_within_a_minute_are_counted_together():
    node = Node()
    assert len(node.pause(27.0)) == 1
    assert [row for late in (6.0, 2.0, 7.0) for row in node.pause(late)] == []
    [together] = node.run(60)
    assert (together.times, together.seconds) == (3, 15.0)


def test_a_short_standstill_now_and_then_is_never_reported():
    node = Node()
    assert [row for _ in range(6) for row in (*node.pause(2.0), *node.run(1.1 * HOUR))] == []


@pytest.mark.parametrize("moved", [-7200.0, -1.0, 1.0, 400.0])
def test_a_clock_that_was_set_is_reported_once(moved):
    node = Node()
    node.run(10)
    [row] = node.pause(clock=moved)
    assert isinstance(row, ev.ClockMoved)
    assert row.seconds == pytest.approx(moved)
    assert node.run(3600) == []
    assert node.pause(clock=-moved) != ()


def test_a_clock_is_set_while_the_service_stands_still():
    rows = Node().pause(27.0, clock=-400.0)
    assert [type(row) for row in rows] == [ev.StoodStill, ev.ClockMoved]


def test_a_clock_set_all_the_time_is_few_rows():
    node = Node()
    rows = [row for _ in range(7200) for row in node.pause(clock=5.0)]
    assert len(rows) == 60
    assert sum(row.seconds for row in rows) == pytest.approx(7200 * 5.0, rel=0.02)
