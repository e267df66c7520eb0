"""Who was met on a device keeps it while he lives, on it or not: a checkpoint that lacks him may have been lost.

But for who comes to an announced grant, in the kubelet's same life, on which nobody was let start: it is not his.
Nor is a device that nobody was granted his, once the policy says that he is a bystander.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from ground.errors import Reason
from scrubber.core import acquire, next_action, start
from scrubber.core import events as ev
from scrubber.core.acquire import ForPod
from scrubber.core.answers import Admit, Proceed, RecordFirst, Refuse, Wait
from scrubber.core.model import Facts, Holder, Owner
from scrubber.core.record import Record
from tests.core import lives
from tests.core.lives import ENFORCE, FOREIGN, NOW, OF_A, OF_B, A, B, facts, later, rows

LATE = later(1e6)
UNANNOUNCED_POD = Owner(B, NOW, seen=True, unannounced=True)
ITS_OWN = RecordFirst(ev.PutInUse(replace(UNANNOUNCED_POD, unannounced=False)))
ITS = lives.live(lives.FOUND_IN_USE, ITS_OWN.event)
LET_GO = RecordFirst(ev.Released("an unannounced pod has left it before its first start"))
GONE = RecordFirst(ev.Released("its owner is gone"))
NOT_ITS = RecordFirst(ev.Released("it was not granted, and its owner is a bystander by the policy in force"))
CROWD = RecordFirst(ev.PutInUse(replace(UNANNOUNCED_POD, crowded=True)))


def off(*given: str, epoch: str = "epoch-1", withheld: bool = False) -> Facts:
    """Nobody is on it, the visitor lives elsewhere, and the kubelet has given it to these."""
    return replace(facts(alive=True, assigned_pods=given, epoch=epoch), withheld=withheld)


def beside(*holders: Holder, given: Collection[str] | None = ()) -> Facts:
    """The unannounced pod has it open as a bystander, beside these."""
    return facts(holders, alive=True, assigned_pods=given, bystander_pods=[B])


TEND = rows(
    ("it has left; nobody has it", lives.USED_BY_B, off(), LET_GO),
    ("it has left; who has it will ask, and may start without a word after a restart of the kubelet", lives.USED_BY_B,
     off(A), Proceed()),
    ("it may have had it before it was granted: nothing was proven then", lives.VISITED_UNPROVEN, off(), Proceed()),
    ("R11 a kubelet was restarted since: who has it may have started without a word", lives.USED_BY_B,
     off(A, epoch="epoch-2"), Proceed()),
    ("who had it has lost it", lives.VISITED_UNANNOUNCED, off(), Proceed()),
    ("W14 met at the first look; who has it may run already", lives.FOUND_IN_USE, off(A), Proceed()),
    ("W14 it is who has it", lives.FOUND_IN_USE, off(B), ITS_OWN),
    ("R11 the same, on a grant", lives.USED_BY_B, off(A, B), ITS_OWN),
    ("R11 who has it is on it as well", lives.USED_BY_B, facts((OF_A, OF_B), alive=True, assigned_pods=[A]),
     RecordFirst(ev.PutInUse(Owner(A, LATE, seen=True, crowded=True)))),
    ("W3 the checkpoint cannot be read, or there is none", lives.USED_BY_B, facts(alive=True), Proceed()),
    ("W16 nobody can look", lives.USED_BY_B, facts(None, alive=True, assigned_pods=[]), Proceed()),
    ("its pod is gone, and nobody has it", lives.USED_BY_B, facts(alive=False, assigned_pods=[]), LET_GO),
    ("the same, another kubelet life", lives.USED_BY_B, facts(alive=False, assigned_pods=[], epoch="epoch-2"), GONE),
    ("R11 its pod is gone; who has it may have started without a word, and be off it just now", lives.USED_BY_B,
     facts(alive=False, assigned_pods=[A], epoch="epoch-2"), Proceed()),
    ("its pod is gone, who was met on what nobody had granted", lives.FOUND_IN_USE, facts(alive=False), GONE),
    ("its pod is gone, to which it was granted without a word", lives.VISITED_UNANNOUNCED, facts(alive=False), GONE),
    ("its pod is gone, and a job has it, of whom nobody is on it", lives.VISITED_KEPT, facts(alive=False), Proceed()),
    ("a job has it that has not come to it yet, and it was asked for", lives.KEPT, replace(facts(), withheld=True),
     Proceed()),
    ("it is a bystander by now, as all who are on it", lives.FOUND_IN_USE, beside(), NOT_ITS),
    ("it is a bystander, and another process is none", lives.FOUND_IN_USE, beside(FOREIGN), Proceed()),
    ("another pod on it is none", lives.FOUND_IN_USE, beside(OF_A), CROWD),
    ("it is idle, and another pod is the bystander", lives.FOUND_IN_USE,
     replace(beside(), bystander_pods=frozenset({A})), Proceed()),
    ("it is a bystander, and the kubelet gave it the device", lives.FOUND_IN_USE, beside(given=[B]), ITS_OWN),
    ("it is a bystander, and the kubelet gave it the device once", ITS, beside(), Proceed()),
    ("it is a bystander, and another pod has the device", lives.FOUND_IN_USE, beside(given=[A]), Proceed()),
    ("nobody can read to whom the kubelet gave it", lives.FOUND_IN_USE, beside(given=None), Proceed()),
    ("nobody can say who else is on it", lives.FOUND_IN_USE, replace(beside(), holders=None), Proceed()),
    ("it is a bystander, and may be who was granted it", lives.VISITED_UNPROVEN, beside(), Proceed()),
    ("it is a bystander on what was granted without a word", lives.VISITED_UNANNOUNCED, beside(), Proceed()),
    ("it is a bystander, and a job has the device", lives.VISITED_KEPT, beside(), Proceed()),
    ("one without a name is no pod's", lives.USED_BY_HOST, facts((FOREIGN,), assigned_pods=[A]), Proceed()),
)  # fmt: skip


@pytest.mark.parametrize(("record", "seen", "answer"), TEND)
def test_upkeep_chooses_the_action_for_each_state(record: Record, seen: Facts, answer: object) -> None:
    assert next_action.tend(record, seen, ENFORCE, LATE, 0.0) == answer


IN_USE = rows(
    ("R11 it has left; a kubelet was restarted since", lives.USED_BY_B, off(A, epoch="epoch-2"), Reason.IN_USE),
    ("it has left; nothing was proven when it was granted", lives.VISITED_UNPROVEN, off(A), Reason.IN_USE),
    ("W3 nobody can say who has it", lives.USED_BY_B, facts(alive=True), Reason.IN_USE),
    ("nobody can say whether it lives", lives.FOUND_IN_USE, facts(assigned_pods=[]), Reason.NOT_PROVEN_FREE),
    ("W16 nobody can look", lives.USED_BY_B, facts(None, alive=True, assigned_pods=[]), Reason.NOT_PROVEN_FREE),
    ("W2 it was let start", lives.IN_USE_BY_B, off(A), Reason.IN_USE),
)


@pytest.mark.parametrize(("record", "seen", "reason"), IN_USE)
def test_a_request_waits_for_the_end_of_the_unannounced_pod(record: Record, seen: Facts, reason: Reason) -> None:
    asked, given_back = acquire.decide(record, seen, ENFORCE, LATE, ForPod()), acquire.take_back(record, seen, LATE)
    begun = start.decide(record, seen, ENFORCE, A, LATE)
    assert isinstance(asked, Wait)
    assert isinstance(begun, Wait)
    assert isinstance(given_back, Refuse)
    assert {asked.reason, begun.reason, given_back.reason} == {reason}


@pytest.mark.parametrize("alive", [True, False, None])
@pytest.mark.parametrize("given", [(), (A,)], ids=["given to nobody", "given to who asks"])
def test_a_request_ignores_an_unannounced_pod_that_has_left(given, alive):
    seen = facts(alive=alive, assigned_pods=given)
    again = "it was asked for again, and its last owner is gone"
    another = "another owner is about to start, and its last owner is gone"
    assert acquire.decide(lives.USED_BY_B, seen, ENFORCE, LATE, ForPod()) == RecordFirst(ev.Released(again))
    assert acquire.take_back(lives.USED_BY_B, seen, LATE) == RecordFirst(ev.Released("it was given back"))
    assert start.decide(lives.USED_BY_B, seen, ENFORCE, A, LATE) == RecordFirst(ev.Released(another))


START = rows(
    ("it runs", facts(alive=True, assigned_pods=[]), Owner(B, NOW, seen=True)),
    ("nobody can say whether it runs", facts(), Owner(B, LATE)),
)


@pytest.mark.parametrize(("seen", "owner"), START)
def test_an_unannounced_pod_whose_start_is_admitted_becomes_the_owner(seen: Facts, owner: Owner) -> None:
    assert start.decide(lives.USED_BY_B, seen, ENFORCE, B, LATE) == Admit(ev.PutInUse(owner))
