"""An owner that was never seen loses the device when the kubelet has taken it back."""

from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core import ownership, upkeep
from scrubber.core.answers import Proceed, RecordFirst
from scrubber.core.model import Owner
from tests.core import lives
from tests.core.lives import ENFORCE, NOW, A, B, facts, later, live

LATE = later(ownership.STARTS_WITHIN + 1)
AWAITED = live(lives.GRANTED, ev.PutInUse(Owner(A, NOW)))
TAKEN = RecordFirst(ev.Released("it was not used, and the kubelet has taken it from its owner"))


def tended(assigned_pods, *, holders=(), alive=False, at=LATE):
    seen = replace(facts(holders, alive=alive), assigned_pods=assigned_pods)
    return upkeep.tend(AWAITED, seen, ENFORCE, at, 0.0)


def test_an_unseen_owner_is_released_when_the_kubelet_says_so():
    assert tended(frozenset()) == tended(frozenset({B})) == TAKEN


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (tended(frozenset({A})), "the checkpoint still names the owner"),
        (tended(None), "the checkpoint cannot be read"),
        (tended(frozenset(), at=later(1)), "the owner may still start"),
        (tended(frozenset(), alive=None), "it is not known whether the owner runs"),
        (tended(frozenset(), holders=None), "the holders are not known"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_the_device_stays_with_its_owner(found, why):
    del why
    assert found == Proceed()


def test_a_device_with_a_holder_is_not_released_as_unused():
    assert tended(frozenset(), holders=(lives.LEFTOVER,)) != TAKEN


def test_the_checkpoint_says_nothing_about_an_owner_without_a_name():
    nameless = upkeep.tend(lives.USED_BY_HOST, replace(facts(), assigned_pods=frozenset()), ENFORCE, LATE, 0.0)
    assert nameless == Proceed()
