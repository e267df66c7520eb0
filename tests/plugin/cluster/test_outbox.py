"""What waits to be told, and what is counted instead."""

from itertools import count

import pytest

from plugin.cluster.node_report import EventReason, NodeEvent
from plugin.cluster.outbox import WINDOW, Outbox


def happening(device="GPU-0", code=EventReason.SICK, ailment="xid", note="x"):
    return NodeEvent(device, code, ailment, note)


@pytest.fixture
def outbox():
    numbers = count(1)
    return Outbox(lambda: f"n.{next(numbers)}", most=3)


def test_letters_go_out_in_the_order_in_which_they_happened(outbox):
    for device in "abc":
        outbox.put(happening(device), 0)
    found = []
    while (letter := outbox.first()) is not None:
        found.append(letter.event.device)
        outbox.sent(letter)
    assert found == list("abc")


def test_a_repeated_event_waits_once_with_the_newest_note(outbox):
    outbox.put(happening(note="old"), 1)
    outbox.put(happening(note="new"), 2)
    letter = outbox.first()
    assert (letter.count, letter.first, letter.last, letter.event.note) == (2, 1, 2, "new")
    assert outbox.waiting() == 1


@pytest.mark.parametrize("other", [{"device": "b"}, {"code": EventReason.QUARANTINED}, {"ailment": "ecc"}])
def test_another_device_code_or_ailment_is_another_thing(outbox, other):
    outbox.put(happening(), 0)
    outbox.put(happening(**other), 0)
    assert outbox.waiting() == 2


@pytest.mark.parametrize(("later", "counted"), [(0, 2), (WINDOW, 2), (WINDOW + 1, 1), (-1, 1)])
def test_a_sent_event_is_counted_within_the_window(outbox, later, counted):
    outbox.put(happening(), 0)
    first = outbox.first()
    outbox.sent(first)
    outbox.put(happening(), later)
    letter = outbox.first()
    assert (letter.count, letter.name == first.name) == (counted, counted == 2)


def test_a_repetition_during_a_send_is_still_to_send(outbox):
    outbox.put(happening(), 0)
    letter = outbox.first()
    outbox.put(happening(), 1)
    outbox.sent(letter)
    again = outbox.first()
    assert (again.name, again.sent, again.count) == (letter.name, 1, 2)


def test_a_deleted_event_is_sent_under_a_new_name(outbox):
    outbox.put(happening(), 0)
    letter = outbox.first()
    outbox.sent(letter)
    outbox.put(happening(), 1)
    outbox.lost(outbox.first())
    again = outbox.first()
    assert again.name != letter.name
    assert (again.sent, again.count) == (0, 2)


def test_an_event_dropped_while_being_sent_stays_dropped(outbox):
    outbox.put(happening("a"), 0)
    letter = outbox.first()
    for device in "bcd":
        outbox.put(happening(device), 1)
    outbox.sent(letter)
    outbox.lost(letter)
    assert [outbox.first().event.device, outbox.waiting(), outbox.dropped] == ["b", 3, 1]


def test_a_full_outbox_drops_and_counts_the_oldest(outbox):
    outbox.put(happening("a"), 0)
    outbox.sent(outbox.first())
    for _ in range(2):
        outbox.put(happening("a"), 1)  # two more of what was told once
    for device in "bcd":
        outbox.put(happening(device), 2)
    assert (outbox.dropped, outbox.waiting(), outbox.first().event.device) == (2, 3, "b")
    outbox.put(happening("a"), 3)
    assert outbox.dropped == 3  # b
    assert outbox.waiting() == 3


def test_old_sent_events_are_forgotten(outbox):
    for number in range(1000):
        outbox.put(happening(str(number)), number * WINDOW * 2)
        outbox.sent(outbox.first())
    assert len(outbox._events) == 1
