"""Which devices one reset takes down, and whether one is under way."""

from __future__ import annotations

from dataclasses import replace

from scrubber.core import reset_domains
from scrubber.core.model import Job, Step
from scrubber.core.record import Record
from tests.core import lives


def test_siblings_are_the_other_devices_of_a_reset_domain():
    def device(name: str, domain: str | None, job: Job) -> Record:
        info = replace(lives.CLEAN.device, uuid=name, reset_domain=domain)
        return lives.but(lives.SCRUBBING, device=info, job=job)

    assert lives.SCRUBBING.scrubs.job is not None
    resetting = replace(lives.SCRUBBING.scrubs.job, begun=Step.RESET)
    clearing = replace(lives.SCRUBBING.scrubs.job, begun=Step.CLEAR)
    one, other = device("GPU-1", "switch", resetting), device("GPU-2", "switch", clearing)
    elsewhere, alone = device("GPU-3", "board", resetting), device("GPU-4", None, resetting)
    records = [one, other, elsewhere, alone]
    assert reset_domains.siblings(one, records) == [other]
    assert reset_domains.siblings(alone, records) == []
    assert reset_domains.resetting(other, records)
    assert not reset_domains.resetting(one, records)
    assert not reset_domains.resetting(alone, records)
