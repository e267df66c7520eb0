"""A JSON text is exactly one document of its kind, or an error that names the place."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum

import pytest

from ground.documents import strict_json


class Mood(Enum):
    WELL = "well"
    ILL = "ill"


@dataclass(frozen=True)
class Part:
    size: int
    name: str | None = None


@dataclass(frozen=True)
class Gap:
    size: int


@dataclass(frozen=True)
class Whole:
    part: Part
    parts: tuple[Part, ...] = ()
    pair: tuple[int, float] | None = None
    numbers: frozenset[int] = frozenset()
    free: Mapping[str, object] | None = None
    on: bool = False
    share: float = 0.5
    mood: Mood = Mood.WELL
    either: Part | Gap | None = None


FULL = Whole(
    Part(1, "a"), (Part(2), Part(3)), (4, 5.5), frozenset({6, 7}), {"b": [8, None]}, True, 0.25, Mood.ILL, Gap(9)
)
PLAIN = json.loads(strict_json.encode(Whole(Part(1))))


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("document", [FULL, Whole(Part(1))], ids=["full", "plain"])
def test_a_document_is_decoded_as_it_was_encoded(document, indent):
    text = strict_json.encode(document, indent=indent)
    assert text.endswith(b"\n")
    assert strict_json.decode(Whole, text) == document


def test_a_time_without_an_end_is_kept():
    endless = Whole(Part(1), share=math.inf)
    assert strict_json.decode(Whole, strict_json.encode(endless)) == endless


def test_nan_is_no_number():
    with pytest.raises(ValueError, match="NaN is not a number"):
        strict_json.decode(Whole, strict_json.encode(Whole(Part(1), share=math.nan)))


def test_a_whole_number_is_read_as_a_float():
    found = strict_json.decode(Whole, json.dumps(PLAIN | {"share": 1}))
    assert (found.share, type(found.share)) == (1.0, float)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"more": 1}, "expected exactly the fields either, free, mood, numbers, on, pair, part, parts, share"),
        ({"part": {"size": 1}}, "part: expected exactly the fields name, size"),
        ({"part": []}, "part: expected exactly the fields name, size"),
        ({"part": None}, "part: expected exactly the fields name, size"),
        ({"parts": [{"size": "1", "name": None}]}, r"parts\[0\]\.size: expected int, got '1'"),
        ({"parts": {}}, r"parts: expected tuple\[.*\], got {}"),
        ({"pair": [1]}, r"pair: expected tuple\[int, float\], got \[1\]"),
        ({"pair": [1, 2.0, 3]}, r"pair: expected tuple\[int, float\]"),
        ({"pair": [1.0, 2.0]}, r"pair\[0\]: expected int, got 1\.0"),
        ({"numbers": [True]}, r"numbers\[0\]: expected int, got True"),
        ({"free": [1]}, "free: expected .*Mapping.*, got"),
        ({"on": 1}, "on: expected bool, got 1"),
        ({"on": None}, "on: expected bool, got None"),
        ({"share": True}, "share: expected float, got True"),
        ({"share": "1"}, "share: expected float, got '1'"),
        ({"mood": "perhaps"}, "mood: expected Mood, got 'perhaps'"),
        ({"either": {"name": "a"}}, r"either: expected .*Part \| .*Gap \| None, got {'name': 'a'}"),
        ({"either": {"size": "1"}}, r"either\.size: expected int, got '1'"),
        ({"either": []}, r"either: expected .*, got \[\]"),
        ({"mood": []}, r"mood: expected Mood, got \[\]"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_its_place(change, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        strict_json.decode(Whole, json.dumps(PLAIN | change))


@pytest.mark.parametrize("name", PLAIN)
def test_a_missing_field_is_refused_even_with_a_default(name):
    text = json.dumps({key: value for key, value in PLAIN.items() if key != name})
    with pytest.raises(ValueError, match="expected exactly the fields"):
        strict_json.decode(Whole, text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b'{"size": 1, "size": 1, "name": null}',
        b'{"size": 1, "name": ' + 10**5 * b"[",
        b'{"size": 1, "name": null} {}',
    ],
    ids=["empty", "cut", "no text", "a list", "a name twice", "too deep", "two documents"],
)
def test_a_text_that_is_not_one_json_object_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        strict_json.decode(Part, text)


def test_a_value_that_json_cannot_hold_is_refused():
    with pytest.raises(TypeError, match="cannot be stored"):
        strict_json.encode(Part(b"bytes"))  # type: ignore[arg-type] # on purpose


def test_the_text_is_plain_json():
    assert json.loads(strict_json.encode(FULL)) == asdict(FULL) | {
        "parts": [asdict(Part(2)), asdict(Part(3))], "pair": [4, 5.5], "numbers": [6, 7], "mood": "ill",
    }  # fmt: skip
