"""Units: parsed values can be printed and parsed again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ground.documents import units
from policies import base_model


class Timed(BaseModel):
    """A model with a duration."""

    pause: base_model.Duration


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_every_duration_survives_being_shown_and_read_again(seconds):
    assert units.parse_duration(units.format_duration(seconds)) == seconds


@given(st.integers(min_value=0))
def test_every_size_survives_being_shown_and_read_again(count):
    assert units.parse_size(units.format_size(count)) == count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("10s", 10), ("5m", 300), ("1h", 3600), ("7d", 604800), ("1.5m", 90), ("0s", 0)],
)
def test_a_duration_is_read_in_seconds(text, seconds):
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "wrong", ["10", "10 s", "s", "-1s", "1e3s", "10S", "1.s", ".5s", "10s\n", "\u0661s", "", 10, None]
)
def test_a_duration_needs_a_number_and_a_unit(wrong):
    with pytest.raises(ValueError, match=r"^a duration such as"):
        units.parse_duration(wrong)


@pytest.mark.parametrize(("text", "count"), [("64MiB", 64 << 20), ("1.5KiB", 1536), ("1B", 1), ("0B", 0)])
def test_a_size_is_read_in_bytes(text, count):
    assert units.parse_size(text) == count


@pytest.mark.parametrize("wrong", ["64", "64MB", "64 MiB", "1.5B", "0.3KiB", "-1B", "", 64, None])
def test_a_size_is_a_whole_number_of_bytes(wrong):
    with pytest.raises(ValueError, match=r"^a size of whole bytes"):
        units.parse_size(wrong)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0, "0s"), (0.25, "250ms"), (90.0, "90s"), (86400.0, "1d"), (1e-7, "0.0000001s")]
)
def test_a_duration_uses_its_largest_exact_unit(seconds, shown):
    assert units.format_duration(seconds) == shown


def test_a_loaded_model_is_written_back_in_the_same_form():
    written = {"pause": "5m"}
    assert json.loads(Timed.model_validate(written).model_dump_json()) == written


def test_the_schema_pattern_is_portable():
    assert "?P<" not in Timed.model_json_schema()["properties"]["pause"]["pattern"]
