"""What a scrub on the fast path costs is counted by a benchmark, and does not grow unseen."""

from __future__ import annotations

import pytest

from benchmarks import fast_job
from policies.policy_model import Clear, Passes, Policy
from tests.devices.nvidia.bench import place
from tests.fakes.cuda.fixtures import in_this_process, libraries
from tests.fakes.cuda.machine import SIZE, equip

COUNTS = (SIZE, 0, 0)


@pytest.mark.parametrize(
    ("clear", "counts", "passes", "opened"),
    [
        (Clear(), COUNTS, 4, 1),
        (Clear(passes=Passes.ZERO), COUNTS, 2, 1),
        (Clear(), None, 4, 2),  # the service could not read the counts
        (Clear(), (SIZE, 0, 2**30), 4, 2),  # or read them while the last tenant's memory was given back
    ],
)
def test_a_fast_job_takes_four_passes_and_opens_nvml_once(rig, tmp_path, clear, counts, passes, opened):
    with in_this_process(equip(tmp_path / "cuda", [rig.gpu(0)], libraries())):
        cost = fast_job.run(place(rig, 0), Policy(clear=clear), counts)
    assert cost.passes == passes
    assert [call for _, call, _ in rig.machine.calls()].count("nvmlInitWithFlags") == opened
