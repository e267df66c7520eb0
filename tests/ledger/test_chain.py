"""The chain as values: what it notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubber.core.model import Moment
from scrubber.ledger import chain, store

AT = Moment(1.5, 2.5)
ROWS = chain.seal(chain.START, [chain.unsealed("GPU-1", AT, "op", "released", '{"why":"x"}')] * 4)
HEAD = ROWS[-1].head
CUT = chain.MissingTail(HEAD, "[]")
AFTER = chain.seal(HEAD, [chain.compaction(AT, CUT)])
END = AFTER[-1].head


def broken_at(cut: chain.MissingTail | None, rows: tuple[chain.ChainRow, ...], noted: store.Head | None) -> int | None:
    with pytest.raises(store.CorruptLedgerError) as caught:
        list(chain.check(cut, rows, noted))
    return caught.value.seq


def test_a_whole_chain_holds() -> None:
    assert tuple(chain.check(None, ROWS, HEAD)) == ROWS
    assert tuple(chain.check(CUT, AFTER, END)) == AFTER


@given(
    st.sampled_from(range(4)),
    st.sampled_from(
        [
            lambda it: it._replace(device="GPU-2"),
            lambda it: it._replace(wall=it.wall + 2**-40),
            lambda it: it._replace(uptime=-it.uptime),
            lambda it: it._replace(op="pop"),
            lambda it: it._replace(kind="soiled"),
            lambda it: it._replace(body='{"why":"y"}'),
            lambda it: it._replace(prev="0" * 63 + "1"),
            lambda it: it._replace(hash=it.hash.upper()),
            lambda it: it._replace(device="GPU-1o", op="p"),
        ]
    ),
)
def test_a_changed_row_is_named(index: int, change: Callable[[chain.ChainRow], chain.ChainRow]) -> None:
    rows = (*ROWS[:index], change(ROWS[index]), *ROWS[index + 1 :])
    assert broken_at(None, rows, HEAD) == index + 1


def test_a_changed_and_resealed_row_breaks_the_next() -> None:
    forged = chain.seal(chain.START, [chain.unsealed("GPU-2", AT, "op", "released", "{}")])
    assert broken_at(None, forged + ROWS[1:], HEAD) == 2


@pytest.mark.parametrize("index", range(4))
def test_a_missing_row_is_named(index: int) -> None:
    assert broken_at(None, ROWS[:index] + ROWS[index + 1 :], HEAD) == index + 1


def test_rows_in_another_order_are_noticed() -> None:
    assert broken_at(None, (ROWS[0], ROWS[2], ROWS[1], ROWS[3]), HEAD) == 2


def test_a_cut_tail_is_noticed_by_the_head_alone() -> None:
    assert broken_at(None, ROWS[:2], HEAD) == 3
    assert tuple(chain.check(None, ROWS[:2], ROWS[1].head)) == ROWS[:2]


def test_an_older_head_must_be_in_the_chain() -> None:
    assert tuple(chain.check(None, ROWS, ROWS[1].head)) == ROWS
    assert broken_at(None, ROWS, store.Head(2, ROWS[2].hash)) == 2


def test_without_a_head_only_the_first_row_is_believed() -> None:
    assert tuple(chain.check(None, ROWS[:1], None)) == ROWS[:1]
    assert broken_at(None, ROWS, None) is None
    assert broken_at(None, (), None) is None


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
def test_a_snapshot_outside_the_chain_is_found(cut: chain.MissingTail | None, rows: tuple[chain.ChainRow, ...]) -> None:
    broken_at(cut, rows, rows[-1].head)
