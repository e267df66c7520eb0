"""What two answers of a witness say of the time between them."""

import pytest

from scrubber.core.short_uses import Use, use_between
from scrubber.core.witness import Counted, Missed, NoWitness

ONE, TWO = Counted("accounts", 1), Counted("accounts", 2)
NONE, LOST = NoWitness("switched off"), Missed("raise its limit")


@pytest.mark.parametrize(
    ("before", "now", "use"),
    [
        (None, ONE, None),
        (None, NONE, None),
        (None, LOST, Use("raise its limit")),
        (ONE, ONE, None),
        (ONE, TWO, Use()),
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
    assert use_between(before, now) == use
