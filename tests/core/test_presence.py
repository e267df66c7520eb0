"""Which devices a reset takes down, and which devices were taken away."""

from __future__ import annotations

from dataclasses import replace

from scrubber.core import presence
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
