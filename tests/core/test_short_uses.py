"""What two answers of a witness say of the time between them."""

import pytest

from scrubber.core.short_uses import Use, compared
from scrubber.core.witness import Counted, Missed, NoWitness, Witness

ONE, TWO, OTHER = Counted(Witness.FENCE, 1), Counted(Witness.FENCE, 2), Counted(Witness.FILES, 1)
NONE, LOST = NoWitness("switched off"), Missed("raise its limit")


@pytest.mark.parametrize(
    ("before", "now", "use"),
    [
        (None, ONE, None),
        (None, NONE, None),
        (None, LOST, Use("raise its limit")),
        (ONE, ONE, None),
        (ONE, TWO, Use()),
        (TWO, OTHER, Use("fence in the kernel no longer counts, and watch on files had not counted before")),
        (ONE, NONE, Use("switched off")),
        (ONE, LOST, Use("raise its limit")),
        (NONE, NONE, None),
        (NONE, ONE, None),
        (LOST, ONE, Use("raise its limit")),
        (LOST, NONE, Use("raise its limit")),
        (LOST, LOST, Use("raise its limit")),
    ],
)
def test_only_a_witness_that_missed_nothing_excludes_a_use(before, now, use):
    assert compared(before, now) == (now, use)


def test_an_older_count_of_one_witness_is_passed_over():
    assert compared(TWO, ONE) == (TWO, None)
