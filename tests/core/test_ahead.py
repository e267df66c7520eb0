"""Ahead of the next tenant: when a device is offered for a scrub to come, and who is not waited for any more."""

from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core import offering, ownership, upkeep
from scrubber.core.answers import Note, Proceed
from scrubber.core.model import Owner, Path
from tests.core import lives
from tests.core.lives import ENFORCE, NOW, STRICT, A, B, facts, later, live

LATE = later(ownership.STARTS_WITHIN + 1)
AWAITED = live(lives.GRANTED, ev.PutInUse(Owner(A, NOW)))
TAKEN = Note(ev.Released("it was not used, and the kubelet has taken it from its owner"))


@pytest.mark.parametrize("record", [lives.DIRTY, lives.SCRUBBING], ids=["released", "being scrubbed"])
def test_a_device_whose_scrubs_do_not_fit_the_allocate_budget_is_not_offered_for_them(record):
    budget = ENFORCE.budgets.allocate
    assert offering.offer(replace(record, fast_seconds=(9 * budget, budget, 0.1)), ENFORCE, NOW).healthy, (
        "one may be late"
    )
    assert not offering.offer(replace(record, fast_seconds=(budget + 1, budget + 1, 0.1)), ENFORCE, NOW).healthy


def test_a_device_that_was_released_to_the_slow_path_is_not_offered_for_it():
    assert not offering.offer(replace(lives.DIRTY, due_path=Path.SLOW), STRICT, NOW).healthy


def tended(assigned_pods, *, holders=(), alive=False, at=LATE):
    seen = replace(facts(holders, alive=alive), assigned_pods=assigned_pods)
    return upkeep.tend(AWAITED, seen, ENFORCE, at, 0.0)


def test_an_owner_who_never_came_is_not_waited_for_when_the_kubelet_has_taken_it_back():
    assert tended(frozenset()) == tended(frozenset({B})) == TAKEN


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (tended(frozenset({A})), "it is still the owner's"),
        (tended(None), "nobody can tell whose it is"),
        (tended(frozenset(), at=later(1)), "the owner may be on its way"),
        (tended(frozenset(), alive=None), "nobody can tell whether the owner runs"),
        (tended(frozenset(), holders=None), "nobody can tell who is on it"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_it_stays_the_owners(found, why):
    del why
    assert found == Proceed()


def test_somebody_on_it_is_no_nobody():
    assert tended(frozenset(), holders=(lives.LEFTOVER,)) != TAKEN


def test_the_kubelets_word_says_nothing_of_a_use_without_an_owner():
    nameless = upkeep.tend(lives.NAMELESS, replace(facts(), assigned_pods=frozenset()), ENFORCE, LATE, 0.0)
    assert nameless == Proceed()
