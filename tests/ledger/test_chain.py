"""The chain as values: what it notices. A change of any column is in ``test_audit``, the formula in ``test_codec``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrubber.core.model import Moment
from scrubber.ledger import chain, store

AT = Moment(1.5, 2.5)
ROWS = chain.seal(chain.START, [chain.unsealed("GPU-1", AT, "op", "released", '{"why":"x"}')] * 4)
HEAD = ROWS[-1].head
CUT = chain.MissingTail(HEAD, "[]")
AFTER = chain.seal(HEAD, [chain.compaction(AT, CUT)])


def broken_at(cut, rows, noted) -> int | None:
    with pytest.raises(store.CorruptLedgerError) as caught:
        list(chain.check(cut, rows, noted))
    return caught.value.seq


def test_a_whole_chain_holds():
    assert tuple(chain.check(None, ROWS, HEAD)) == ROWS
    assert tuple(chain.check(CUT, AFTER, AFTER[-1].head)) == AFTER


FORGED = chain.seal(chain.START, [chain.unsealed("GPU-2", AT, "op", "released", "{}")])


@pytest.mark.parametrize(
    ("rows", "noted", "named"),
    [
        (ROWS[1:], HEAD, 1),
        (ROWS[:1] + ROWS[2:], HEAD, 2),
        (ROWS[:3], HEAD, 4),
        (ROWS[:2], HEAD, 3),
        ((ROWS[0], ROWS[2], ROWS[1], ROWS[3]), HEAD, 2),
        (FORGED + ROWS[1:], HEAD, 2),
        (ROWS, store.Head(2, ROWS[2].hash), 2),
        (ROWS, None, None),
        ((), None, None),
    ],
    ids=["first missing", "second missing", "last missing", "two missing", "another order", "resealed",
         "an older head not in the chain", "no head", "nothing"],
)  # fmt: skip
def test_a_broken_chain_names_the_row(rows, noted, named):
    assert broken_at(None, rows, noted) == named


@pytest.mark.parametrize(
    ("rows", "noted"),
    [(ROWS[:2], ROWS[1].head), (ROWS, ROWS[1].head), (ROWS[:1], None)],
    ids=["up to the head", "beyond the head", "the first row without a head"],
)
def test_a_crash_breaks_no_chain(rows, noted):
    assert tuple(chain.check(None, rows, noted)) == rows


@pytest.mark.parametrize(
    ("cut", "rows"),
    [
        (replace(CUT, records="[ ]"), AFTER),
        (replace(CUT, head=store.Head(3, HEAD.hash)), AFTER),
        (replace(CUT, head=store.Head(4, "f" * 64)), AFTER),
        (None, AFTER),
        (None, ROWS + AFTER),
        (CUT, chain.seal(HEAD, [chain.note(chain.BEGUN, AT, {})])),
    ],
    ids=["records", "seq", "hash", "snapshot gone", "rows came back", "no head"],
)
def test_a_snapshot_outside_the_chain_is_found(cut, rows):
    broken_at(cut, rows, rows[-1].head)
