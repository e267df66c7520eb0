"""What decisions stand on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core import leftover, ownership, presence, proof, siblings
from scrubber.core.model import Ailment, AilmentKind, Holder, Job, Owner, Record, Step, Vitals
from tests.core import lives
from tests.core.lives import NOW, OF_A, OF_B, A, facts, later, live, rows


def test_a_sibling_is_whoever_goes_down_with_it():
    def device(name: str, domain: str | None, job: Job) -> Record:
        info = replace(lives.CLEAN.device, uuid=name, reset_domain=domain)
        return replace(lives.SCRUBBING, device=info, job=job)

    assert lives.SCRUBBING.job is not None
    resetting = replace(lives.SCRUBBING.job, step=Step.RESET)
    clearing = replace(lives.SCRUBBING.job, step=Step.CLEAR)
    one, other = device("GPU-1", "switch", resetting), device("GPU-2", "switch", clearing)
    stranger, alone = device("GPU-3", "elsewhere", resetting), device("GPU-4", None, resetting)
    everybody = [one, other, stranger, alone]
    assert siblings.siblings(one, everybody) == [other]
    assert siblings.siblings(alone, everybody) == []
    assert siblings.resetting(other, everybody)
    assert not siblings.resetting(one, everybody)
    assert not siblings.resetting(alone, everybody)


def test_what_is_not_there_any_more_is_nobodys_sibling():
    """A slice that was laid out anew stays in the ledger; it must not hold up the resets of those in its place."""
    info = replace(lives.DEVICE, reset_domain="GPU-p")
    gone = replace(lives.QUARANTINED, device=info)
    assert gone.quarantine is not None
    assert gone.quarantine.ailment.kind is AilmentKind.LOST
    sick = replace(gone, quarantine=replace(gone.quarantine, ailment=Ailment(AilmentKind.ECC, "")))
    here = replace(lives.CLEAN, device=replace(info, uuid="GPU-2"))
    assert siblings.siblings(here, [gone, here]) == []
    assert siblings.siblings(here, [sick, here]) == [sick]


def test_a_clean_device_is_soiled_by_whoever_is_on_it_or_holds_its_memory_unseen():
    assert proof.ended_by_use(facts()) is None
    assert proof.ended_by_use(facts((OF_B,))) == ev.Soiled("it was used without a grant", (OF_B,))
    leaking = facts(vitals=Vitals(leaked_bytes=7))
    assert proof.ended_by_use(leaking) == ev.Soiled("7 bytes are held by no visible process")


HANGS = Holder(41, 100.0, "python", A, "D")
DOUBTFUL = rows(
    ("it is nobody's", None, (), False),
    ("nobody knows whose it is", Owner(None, NOW, seen=True), (HANGS,), False),
    ("it was let start and was seen", Owner(A, NOW, seen=True), (OF_A,), False),
    ("the same, it is not on it", Owner(A, NOW, seen=True), (), False),
    ("the same, and it hangs", Owner(A, NOW, seen=True), (HANGS,), True),
    ("one of two hangs", Owner(A, NOW, seen=True), (HANGS, OF_A), False),
    ("it was let start and never seen", Owner(A, NOW), (), True),
    ("it was merely met", Owner(A, NOW, seen=True, unannounced=True), (OF_A,), True),
)


@pytest.mark.parametrize(("owner", "holders", "doubtful"), DOUBTFUL)
def test_the_kubelets_word_is_asked_for_where_nothing_else_could_tell(owner, holders, doubtful):
    assert ownership.needs_checkpoint(owner, facts(holders)) is doubtful


def test_what_was_pulled_is_not_missed_and_a_gpu_that_waits_for_a_person_is_whatever_its_layout():
    def out(kind: AilmentKind, due: float | None = None, parent: str | None = None) -> Record:
        info = replace(lives.DEVICE, parent=parent)
        return replace(lives.QUARANTINED, device=info, quarantine=lives.quarantine(Ailment(kind, ""), due))

    assert presence.taken_away(out(AilmentKind.REPLACED))
    assert presence.taken_away(out(AilmentKind.RELAID, due=1.0))
    assert not presence.taken_away(out(AilmentKind.RELAID))
    assert presence.taken_away(out(AilmentKind.RELAID, parent="GPU-p"))
    assert not presence.taken_away(out(AilmentKind.LOST, due=1.0))
    assert not presence.taken_away(lives.CLEAN)


def test_whoever_starts_without_a_word_may_have_come_since_the_first_grant():
    again = live(lives.UNANNOUNCED, ev.Granted(lives.grant(lives.UNANNOUNCED, announced=False)), at=later(7))
    assert leftover.span(again) == (NOW.uptime, math.inf)
