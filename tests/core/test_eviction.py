"""Which holders a scrub may end, by the policy and by when they started: a table of cases."""

import pytest

from scrubber.core import events as ev
from scrubber.core import next_scrub
from scrubber.core.model import Holder
from tests.core import lives
from tests.core.lives import ENFORCE, LEFTOVER, NOW, OF_A, STRICT, later, live, rows

BEGAN, SHELL = NOW.uptime, Holder(1, NOW.uptime + 5000, "bash", None)
ENDED = lives.but(lives.DIRTY, ended=BEGAN + 100)
TERMINABLE = rows(
    ("a leftover, terminate", Holder(1, BEGAN, "x", None), lives.DIRTY, ENFORCE, True),
    ("the last one of it", Holder(1, BEGAN + 100, "x", None), ENDED, ENFORCE, True),
    ("a process from after the tenancy, wait", Holder(1, BEGAN + 100.01, "x", None), ENDED, ENFORCE, False),
    ("the same, terminate", Holder(1, BEGAN + 100.01, "x", None), ENDED, lives.ENDS_ALL, True),
    ("a shell on a device that could not be scrubbed for hours", SHELL, lives.SET_BACK, ENFORCE, False),
    ("a grant that nobody was let start on", SHELL, lives.GRANTED, ENFORCE, False),
    ("the same, given back", SHELL, live(lives.GRANTED, ev.Released("x"), at=later(1e4)), ENFORCE, False),
    ("a grant that somebody of the host was met on", SHELL, lives.USED_BY_HOST, ENFORCE, False),
    ("the same, and he left", SHELL, live(lives.USED_BY_HOST, ev.Released("x"), at=later(1e4)), ENFORCE, False),
    ("a grant that another pod's container was met on", SHELL, lives.USED_BY_B, ENFORCE, False),
    ("a grant whose start is not announced", SHELL, lives.UNANNOUNCED, ENFORCE, True),
    ("the same, given back", SHELL, live(lives.UNANNOUNCED, ev.Released("x"), at=later(1e4)), ENFORCE, True),
    ("who has it is on it, in vain for his last container", SHELL, lives.IN_USE, ENFORCE, True),
    ("an older ledger does not say when it ended", LEFTOVER, lives.but(lives.DIRTY, ended=None), ENFORCE, False),
    ("a leftover, wait", Holder(1, BEGAN, "x", None), lives.DIRTY, STRICT, False),
    ("W19 a process from before the tenancy, wait", Holder(1, BEGAN - 0.01, "x", None), lives.DIRTY, ENFORCE, False),
    ("a process from before the tenancy, terminate", Holder(1, BEGAN - 0.01, "x", None), lives.DIRTY, lives.ENDS_ALL,
     True),
    ("there was no tenancy, wait", LEFTOVER, lives.SOILED, ENFORCE, False),
    ("there was no tenancy, terminate", LEFTOVER, lives.SOILED, lives.ENDS_ALL, True),
    ("a live container's, whatever policy says", OF_A, lives.DIRTY, lives.ENDS_ALL, False),
)  # fmt: skip


@pytest.mark.parametrize(("holder", "record", "policy", "may"), TERMINABLE)
def test_which_holders_may_be_ended(holder, record, policy, may):
    assert next_scrub.terminable(holder, record, policy) is may
