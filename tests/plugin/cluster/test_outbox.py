"""Which events wait to be sent, and which are dropped."""

from itertools import count

import pytest

from plugin.cluster.node_report import EventReason, NodeEvent
from plugin.cluster.outbox import Outbox


def change(device="GPU-0", reason=EventReason.SICK, ailment="xid", note="x"):
    return NodeEvent(device, reason, ailment, note)


@pytest.fixture
def outbox():
    numbers = count(1)
    return Outbox(lambda: f"n.{next(numbers)}", most=3)


def waiting(outbox):
    """Take all events out, in order."""
    found = []
    while (pending := outbox.first()) is not None:
        found.append(pending)
        outbox.sent(pending)
    return found


def test_events_are_sent_in_their_order(outbox):
    for device in "abc":
        outbox.put(change(device), 0)
    assert [it.event.device for it in waiting(outbox)] == list("abc")


def test_a_repeated_event_waits_once_with_the_newest_note(outbox):
    outbox.put(change(note="old"), 1)
    outbox.put(change(note="new"), 2)
    assert [(it.at, it.event.note) for it in waiting(outbox)] == [(2, "new")]


@pytest.mark.parametrize("other", [{"device": "GPU-1"}, {"reason": EventReason.QUARANTINED}, {"ailment": "ecc"}])
def test_another_device_reason_or_ailment_is_another_event(outbox, other):
    outbox.put(change(), 0)
    outbox.put(change(**other), 0)
    assert outbox.waiting() == 2


def test_a_sent_event_that_repeats_is_a_new_one(outbox):
    outbox.put(change(), 0)
    [first] = waiting(outbox)
    outbox.put(change(), 1)
    [second] = waiting(outbox)
    assert first.name != second.name


def test_a_repetition_during_a_send_is_still_to_send(outbox):
    outbox.put(change(), 0)
    sending = outbox.first()
    outbox.put(change(), 1)
    outbox.sent(sending)
    assert outbox.first().at == 1


def test_a_full_outbox_drops_and_counts_the_oldest(outbox):
    for device in "abcd":
        outbox.put(change(device), 0)
    assert (outbox.dropped, [it.event.device for it in waiting(outbox)]) == (1, list("bcd"))


def test_an_event_dropped_while_being_sent_stays_dropped(outbox):
    outbox.put(change("a"), 0)
    sending = outbox.first()
    for device in "bcd":
        outbox.put(change(device), 1)
    outbox.sent(sending)
    assert (outbox.dropped, outbox.waiting()) == (1, 3)


def test_one_device_that_flaps_displaces_no_other(outbox):
    outbox.put(change("a"), 0)
    for moment in range(10):
        outbox.put(change("b", EventReason.SICK), moment)
        outbox.put(change("b", EventReason.RECOVERED), moment)
    assert (outbox.dropped, outbox.first().event.device) == (0, "a")
