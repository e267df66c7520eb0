"""Rows as values: events as text, where nothing is lost or guessed; and which rows stay as evidence."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubber.core import events, model
from scrubber.core.model import Moment
from scrubber.core.record import Record
from scrubber.ledger import compaction, database, ledger_rows

HERE = Path(__file__).parent
EVENTS = typing.get_args(events.Event)


def values(wanted):
    """Any value of a type, floats finite: a clock or a counter is never NaN."""
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        hints = typing.get_type_hints(wanted)
        return st.builds(wanted, **{field.name: values(hints[field.name]) for field in dataclasses.fields(wanted)})
    if wanted is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    parts = typing.get_args(wanted)
    if typing.get_origin(wanted) is tuple:
        several = st.lists(values(parts[0]), max_size=2).map(tuple)
        return several if parts[-1] is ... else st.tuples(*map(values, parts))
    if isinstance(wanted, types.UnionType):
        return st.one_of(*map(values, parts))
    return st.from_type(typing.cast("type", wanted))


def test_every_event_of_the_union_has_a_kind():
    assert set(ledger_rows.CLASSES.values()) == set(EVENTS)
    assert not ledger_rows.NOTES & set(ledger_rows.CLASSES)


@pytest.mark.parametrize("event", EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_comes_back_as_it_went(event):
    @given(values(event))
    def comes_back(value) -> None:
        assert ledger_rows.decode(*ledger_rows.encode(value)) == value

    comes_back()


@given(st.lists(values(Record), max_size=2).map(tuple))
def test_a_decoded_record_equals_the_encoded_one(records):
    assert ledger_rows.decode_records(ledger_rows.encode_records(records)) == records


def test_a_body_is_canonical():
    holder = model.Holder(7, 0.1, "é x", None)
    assert ledger_rows.encode(events.Soiled("why", (holder,))) == (
        "soiled",
        (
            '{"holders":[{"command":"é x","container":null,"pid":7,"started":0.1,"state":"S"}],"times":1,'
            '"unnamed":false,"why":"why"}'
        ),
    )


@pytest.mark.parametrize(
    ("kind", "body", "complaint"),
    [
        ("no-such-kind", "{}", "unknown kind 'no-such-kind'"),
        ("released", "{", "Invalid JSON"),
        ("released", "{}", "Field required"),
        ("released", '{"why":1}', "valid string"),
        ("released", '{"why":"x","more":1}', "Unexpected keyword"),
        ("soiled", '{"why":"x","holders":[{"pid":"7","started":1.0,"command":"","container":null}]}', "valid integer"),
        ("soiled", '{"why":"x","holders":[{"pid":7,"started":1,"command":"","container":null,"x":0}]}', "Unexpected"),
        ("steps-recorded", '{"job":"j","results":[],"begins":"dance"}', "begins"),
        ("released", '{"why":"x"},{"why":"y"}', "2 events"),
    ],
)
def test_an_inexact_event_is_corrupt(kind, body, complaint):
    with pytest.raises(ledger_rows.CorruptLedgerError, match=complaint):
        ledger_rows.decode(kind, body)


@pytest.mark.parametrize("text", ["", "{}", '[{"device":{}}]', "nonsense"])
def test_an_inexact_snapshot_is_corrupt(text):
    with pytest.raises(ledger_rows.CorruptLedgerError, match="cannot read a snapshot"):
        ledger_rows.decode_records(text)


@pytest.mark.parametrize(
    "event",
    [
        events.Released(typing.cast("str", 3)),
        events.Soiled("x", (model.Holder(1, math.nan, "c", None),)),
        events.Soiled("x", (model.Holder(1, math.inf, "c", None),)),
    ],
)
def test_an_unreadable_value_is_not_written(event):
    with pytest.raises(ValueError, match=r"."):
        ledger_rows.encode(event)


def test_rows_written_by_older_versions_are_still_read():
    """One stored row of each kind, frozen: never regenerate this file, only add to its end."""
    lines = [json.loads(line) for line in (HERE / "golden.jsonl").read_text().splitlines()]
    assert [line.pop("hash") for line in lines] == [ledger_rows.LedgerRow(**line).hash for line in lines]
    rows = [ledger_rows.LedgerRow(**line) for line in lines]
    decoded = ledger_rows.entries(rows)
    assert {ledger_rows.KINDS[type(entry.event)] for entry in decoded} == set(ledger_rows.CLASSES)
    assert [row.kind for row in rows if row.kind in ledger_rows.NOTES] == [ledger_rows.BEGUN, ledger_rows.COMPACTED]
    steps = [result for it in decoded if isinstance(it.event, events.StepsRecorded) for result in it.event.results]
    assert [type(result.findings) for result in steps] == [types.NoneType, *typing.get_args(model.Findings)]


def test_snapshots_written_by_older_versions_are_still_read():
    [full, bare] = ledger_rows.decode_records((HERE / "golden_records.json").read_text().strip())
    assert full.health.quarantine is not None
    assert bare.health.quarantine is None


def described(wanted):
    """Everything that decides how a type is stored, and no class name: a class may be renamed."""
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return sorted(str(member.value) for member in wanted)
    if isinstance(wanted, type) and dataclasses.is_dataclass(wanted):
        return {name: described(hint) for name, hint in typing.get_type_hints(wanted).items()}
    parts = [described(part) for part in typing.get_args(wanted)]
    return [type(wanted).__name__, *parts] if parts else str(wanted)


def test_the_stored_format_changes_only_with_the_schema_version():
    fields = {kind: described(event) for kind, event in ledger_rows.CLASSES.items()} | {"snapshot": described(Record)}
    fields["warnings"] = sorted(ledger_rows.KINDS[event] for event in events.WARNINGS)  # stored beside the evidence
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    version = str(database.VERSION)
    assert json.loads((HERE / "golden_format.json").read_text()).get(version) == digest, (
        f"the stored events changed: this version could not read them. Raise database.VERSION, put it with {digest!r} "
        f"into golden_format.json, read version {version} too, and put a state of it into states"
    )


# -- evidence

AT = Moment(1.5, 2.5)


def used(times, container="pod-a", why="it was used without a grant"):
    holder = model.Holder(100 + times, 0.5, "python", container)
    return ledger_rows.encode(events.Soiled(why, (holder,), times))


def failed(times, container="pod-a", blame=model.Blame.TENANT):
    """A scrub that failed, with other words each time."""
    holder = model.Holder(100 + times, 0.5, "python", container)
    return ledger_rows.encode(events.ScrubFailed("job", f"used by pid {100 + times}", blame, (holder,), times=times))


PROVEN = "scrub-passed", "{}"  # what it says does not matter here
HANDED_OUT = "granted", "{}"
UNDECIDED = model.Blame.UNDECIDED


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ([used(1), PROVEN, used(2), PROVEN, used(3), PROVEN, used(4), PROVEN, HANDED_OUT], [1, 7, 8, 9]),
        ([used(7), PROVEN, used(8), PROVEN], [3, 4]),  # the batch before ends with 6
        ([used(1), PROVEN, used(2), PROVEN, used(3, "pod-b"), PROVEN, used(4), PROVEN, used(5)], [1, 5, 6, 9]),
        ([used(2), PROVEN, used(3, why="unnamed"), PROVEN, used(4), PROVEN, used(5, why="unnamed")], [5, 6, 7]),
        ([used(2), PROVEN, HANDED_OUT, used(1), PROVEN, used(2), PROVEN], [1, 2, 3, 4, 6, 7]),
        ([used(2), PROVEN, ("errors-noted", "{}"), PROVEN, used(3)], [1, 2, 3, 4, 5]),
        ([used(2), PROVEN, (ledger_rows.ATTEMPTED, "{}"), used(3), PROVEN, used(4), PROVEN], [3, 6, 7]),
        ([failed(1), failed(2), failed(3), failed(4), PROVEN, HANDED_OUT, failed(1)], [1, 4, 5, 6, 7]),
        ([failed(7), failed(8), failed(9, "pod-b"), failed(10)], [3, 4]),  # the batch before ends with 6
        ([failed(1), failed(2), failed(3, blame=UNDECIDED), failed(4), failed(5)], [1, 3, 5]),
        ([used(1), failed(1), PROVEN, used(2), failed(1), PROVEN, used(3), failed(1), PROVEN], [1, 2, 7, 8, 9]),
    ],
    ids=[
        "one run",
        "goes on",
        "another container",
        "in turns",
        "another tenant",
        "another event between",
        "an open attempt between",
        "scrubs that failed",
        "they go on",
        "they fail for another reason",
        "each proof and each scrub in turns",
    ],
)
def test_repeated_uses_and_failures_are_counted_together_by_container(rows, kept):
    both = [each for row in rows for each in (("GPU-1", row), ("GPU-2", PROVEN))]
    numbered = [ledger_rows.new_row(seq, device, AT, "op", *row) for seq, (device, row) in enumerate(both, 1)]
    assert [(row.seq + 1) // 2 for row in compaction.evidence(numbered) if row.device == "GPU-1"] == kept
    assert sum(row.device == "GPU-2" for row in compaction.evidence(numbered)) == len(rows)
