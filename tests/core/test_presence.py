"""Which devices a reset takes down, and which devices were taken away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrubber.core import burn_in, presence
from scrubber.core.model import Ailment, AilmentKind, Job, Record, Step
from tests.core import lives


def test_siblings_are_the_other_devices_of_a_reset_domain():
    def device(name: str, domain: str | None, job: Job) -> Record:
        info = replace(lives.CLEAN.device, uuid=name, reset_domain=domain)
        return replace(lives.SCRUBBING, device=info, job=job)

    assert lives.SCRUBBING.job is not None
    resetting = replace(lives.SCRUBBING.job, step=Step.RESET)
    clearing = replace(lives.SCRUBBING.job, step=Step.CLEAR)
    one, other = device("GPU-1", "switch", resetting), device("GPU-2", "switch", clearing)
    elsewhere, alone = device("GPU-3", "board", resetting), device("GPU-4", None, resetting)
    records = [one, other, elsewhere, alone]
    assert presence.siblings(one, records) == [other]
    assert presence.siblings(alone, records) == []
    assert presence.resetting(other, records)
    assert not presence.resetting(one, records)
    assert not presence.resetting(alone, records)


@pytest.mark.parametrize("kind", sorted(presence.GONE, key=str))
def test_a_removed_device_stays_a_sibling_and_is_no_spare(kind):
    """It may come back at any moment."""
    info = replace(lives.DEVICE, reset_domain="GPU-p")
    gone = replace(lives.QUARANTINED, device=info, quarantine=lives.quarantine(Ailment(kind, ""), None))
    here = replace(lives.CLEAN, device=replace(info, uuid="GPU-2"))
    assert presence.siblings(here, [gone, here]) == [gone]
    assert burn_in.spare_devices(here, [gone, here]) == 0


def test_no_burn_in_resets_a_sibling_that_is_not_idle():
    info = replace(lives.DEVICE, reset_domain="GPU-p")
    sick = replace(lives.QUARANTINED, device=info, quarantine=lives.quarantine(Ailment(AilmentKind.ECC, ""), None))
    here = replace(lives.CLEAN, device=replace(info, uuid="GPU-2"))
    assert burn_in.spare_devices(here, [sick, here]) == -1


def test_a_gpu_waiting_for_a_person_is_not_removed():
    def out(kind: AilmentKind, due: float | None = None, parent: str | None = None) -> Record:
        info = replace(lives.DEVICE, parent=parent)
        return replace(lives.QUARANTINED, device=info, quarantine=lives.quarantine(Ailment(kind, ""), due))

    assert presence.taken_away(out(AilmentKind.REPLACED))
    assert presence.taken_away(out(AilmentKind.RELAID, due=1.0))
    assert not presence.taken_away(out(AilmentKind.RELAID))
    assert presence.taken_away(out(AilmentKind.RELAID, parent="GPU-p"))
    assert not presence.taken_away(out(AilmentKind.LOST, due=1.0))
    assert not presence.taken_away(lives.CLEAN)
