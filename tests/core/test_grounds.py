"""What decisions stand on."""

from __future__ import annotations

from dataclasses import replace

from scrubber.core import events as ev
from scrubber.core import grounds
from scrubber.core.model import Ailment, Job, Record, Sickness, Step, Vitals
from tests.core import lives
from tests.core.lives import OF_B, facts


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
    assert grounds.siblings(one, everybody) == [other]
    assert grounds.siblings(alone, everybody) == []
    assert grounds.resetting(other, everybody)
    assert not grounds.resetting(one, everybody)
    assert not grounds.resetting(alone, everybody)


def test_what_is_not_there_any_more_is_nobodys_sibling():
    """A slice that was laid out anew stays in the ledger; it must not hold up the resets of those in its place."""
    info = replace(lives.DEVICE, reset_domain="GPU-p")
    gone = replace(lives.QUARANTINED, device=info)
    assert gone.quarantine is not None
    assert gone.quarantine.sickness.ailment is Ailment.LOST
    sick = replace(gone, quarantine=replace(gone.quarantine, sickness=Sickness(Ailment.ECC, "")))
    here = replace(lives.CLEAN, device=replace(info, uuid="GPU-2"))
    assert grounds.siblings(here, [gone, here]) == []
    assert grounds.siblings(here, [sick, here]) == [sick]


def test_a_clean_device_is_soiled_by_whoever_is_on_it_or_holds_its_memory_unseen():
    assert grounds.soiled(facts()) is None
    assert grounds.soiled(facts((OF_B,))) == ev.Soiled("it was used without a grant", (OF_B,))
    leaking = facts(vitals=Vitals(leaked_bytes=7))
    assert grounds.soiled(leaking) == ev.Soiled("7 bytes are held by no visible process")
