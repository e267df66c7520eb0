"""A proof is valid while it is young and observed, and an older copy of the ledger proves nothing: tables of cases."""

from dataclasses import replace

import pytest

from policies.policy_model import Clear, Passes, Proof
from scrubber.core import events as ev
from scrubber.core import proof
from scrubber.core.model import State
from tests.core import lives
from tests.core.lives import ENFORCE, NOW, facts, later, live, rows

DAY = Proof().max_age
RECEIPT = lives.proof(lives.CLEAN)
RANDOM = ENFORCE.model_copy(update={"clear": Clear(passes=Passes.RANDOM)})
OF_RANDOM = replace(RECEIPT, patterns=("random",), policy_digest=RANDOM.proof_digest)
UNRECORDED = replace(facts(), used_at=NOW.uptime + 0.001)
VALID = rows(
    ("at its greatest age", RECEIPT, facts(), ENFORCE, later(DAY), True),
    ("too old", RECEIPT, facts(), ENFORCE, later(DAY + 0.001), False),
    ("S17 the wall clock has jumped", RECEIPT, facts(), ENFORCE, replace(later(1), wall=NOW.wall + 10 * DAY), True),
    ("a receipt without patterns", replace(RECEIPT, patterns=()), facts(), ENFORCE, NOW, False),
    ("a receipt with other patterns", replace(RECEIPT, patterns=("zero",)), facts(), ENFORCE, NOW, False),
    ("a receipt of random, where zeros are ordered", OF_RANDOM, facts(), ENFORCE, NOW, False),
    ("a receipt of random, where random is ordered", OF_RANDOM, facts(), RANDOM, NOW, True),
    ("a receipt of zeros, where random is ordered", RECEIPT, facts(), RANDOM, NOW, False),
    ("a use that could not be recorded", RECEIPT, UNRECORDED, ENFORCE, later(1), False),
    ("a gap in the observations", RECEIPT, facts(since=NOW.uptime + 0.001), ENFORCE, later(1), False),
)


@pytest.mark.parametrize(("receipt", "seen", "policy", "now", "stands"), VALID)
def test_a_proof_is_valid_while_it_is_young_and_observed(receipt, seen, policy, now, stands):
    assert proof.is_valid(receipt, seen, policy, now) is stands


OLDER = ev.Distrusted("the ledger may be an older copy, made before the device was used", lives.HERE, older_ledger=True)


@pytest.mark.parametrize(
    ("record", "boot_id", "event"),
    [
        (lives.CLEAN, lives.HERE.boot_id, OLDER),
        (lives.CLEAN, None, OLDER),
        (lives.CLEAN, lives.REBOOTED.boot_id, None),
        (lives.IN_USE, lives.HERE.boot_id, OLDER),
    ],
)
def test_a_ledger_that_may_be_an_older_copy_proves_nothing(record, boot_id, event):
    assert proof.ended_by_older_ledger(record, boot_id) == event
    if event is not None:
        assert live(record, event).state is State.UNKNOWN
