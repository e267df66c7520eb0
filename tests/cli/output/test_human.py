"""Values as a person reads them."""

import time
from datetime import UTC, datetime

import pytest

from autoclave.cli.output import human

NOON = datetime(2026, 11, 20, 12, 0, 30, 250000, tzinfo=UTC).timestamp()


@pytest.fixture
def tokyo(monkeypatch):
    """A machine far from UTC, for local times."""
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("count", "printed"),
    [
        (0, "0B"), (1, "1B"), (1023, "1023B"), (1024, "1KiB"), (64 * 2**20, "64MiB"), (1536 * 2**20, "1.5GiB"),
        (2**40, "1TiB"), (5000 * 2**40, "5000TiB"),
    ],
)  # fmt: skip
def test_a_size_uses_its_largest_whole_unit(count, printed):
    assert human.size(count) == printed


@pytest.mark.parametrize(
    ("number", "printed"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (21, "21st"), (112, "112th")],
)
def test_a_place_in_a_queue_is_an_ordinal(number, printed):
    assert human.ordinal(number) == printed


@pytest.mark.parametrize(
    ("seconds", "printed"),
    [(-5, "0s"), (0.4, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (7200, "2h"), (86400, "1d"), (864000, "10d")],
)
def test_an_age_has_one_unit_and_is_never_negative(seconds, printed):
    assert human.span(seconds) == printed


def test_short_durations_are_exact_and_long_ones_rounded():
    assert (human.took(0.123), human.took(59.9), human.took(61)) == ("0.12s", "59.90s", "1m")


@pytest.mark.usefixtures("tokyo")
def test_a_time_for_people_is_local_and_says_its_offset():
    assert human.local(NOON) == "2026-11-20 21:00:30+09:00"


@pytest.mark.usefixtures("tokyo")
@pytest.mark.parametrize("moment", [1e18, -1e18])
def test_a_time_without_a_calendar_is_shown(moment):
    assert human.local(moment)
    assert human.iso(moment)


def test_a_time_for_machines_is_utc():
    assert human.iso(NOON) == "2026-11-20T12:00:30.250Z"


@pytest.mark.usefixtures("tokyo")
@pytest.mark.parametrize(
    "text",
    ["2026-11-20 21:00:30.25", "2026-11-20T12:00:30.250Z", "2026-11-20T13:00:30.25+01:00"],
)
def test_a_time_without_an_offset_is_local(text):
    assert human.since(text) == NOON


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("2h ago", 7200), ("7d", 604800), ("500ms", 0.5)])
def test_a_duration_is_that_long_ago(text, seconds):
    assert human.since(text) == pytest.approx(time.time() - seconds, abs=5)


@pytest.mark.parametrize("text", ["", "ago", "yesterday", "10", "10 m", "2026-13-01", "12:00", "-5m"])
def test_the_message_for_an_invalid_time_shows_an_example(text):
    with pytest.raises(ValueError, match="10m, 2h or 7d"):
        human.since(text)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("plain ütf-8 ✓ [text]", "plain ütf-8 ✓ [text]"),
        ("a\nb", "a\\nb"),
        ("\x1b]0;evil\x07", "\\x1b]0;evil\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("right\u202eleft", "right\\u202eleft"),
    ],
)
def test_text_for_a_terminal_has_no_control_characters(text, printed):
    assert human.printable(text) == printed


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ([], []),
        (["GPU-aaaaaaaa-1111", "GPU-bbbbbbbb-1111"], ["GPU-aaaaaaaa", "GPU-bbbbbbbb"]),
        (["GPU-aaaaaaaa-1111", "GPU-aaaaaaaa-1222"], ["GPU-aaaaaaaa-11", "GPU-aaaaaaaa-12"]),
        (["MIG-0123456789ab", "MIG-0123456789abcdef"], ["MIG-0123456789ab", "MIG-0123456789abc"]),
    ],
)
def test_uuids_are_cut_where_they_differ(names, shown):
    assert list(human.shortened(names).values()) == shown
