"""The page of what was measured on GPUs is the one of the committed records, and a trial prints its own beside it."""

from __future__ import annotations

import pytest

from benchmarks import on_gpus
from benchmarks.trial import computed
from benchmarks.trial.figures import Measured
from benchmarks.trial.records import Records, Writer

KNOWN = on_gpus.KNOWN["H100 80 GB"]


def test_the_page_is_what_the_records_say():
    """Red? make docs."""
    assert (on_gpus.MEASUREMENTS / "gpus.md").read_text() == on_gpus.page(on_gpus.MEASUREMENTS)


def test_a_cell_says_what_was_measured_and_what_was_not(tmp_path):
    records = Records(tmp_path / "gpu.jsonl")
    records.begin({})
    records.begin_part("clear")
    with records.path.open("ab", buffering=0) as file:
        writer = Writer(file.fileno(), "clear")
        writer.add(Measured("reserved", (3 * 2**20, 2 * 2**20, 5 * 2**20), "bytes"))
        writer.add(Measured("context", (), "bytes"))
        writer.end(1.0, "", "")
    assert on_gpus.Row("", "clear", "reserved", 2**20, "MiB").cell(records) == "3 (2 to 5) MiB"
    assert {on_gpus.Row("", "clear", it).cell(records) for it in ("context", "other")} == {on_gpus.NOT_MEASURED}


def test_the_trial_prints_measured_beside_computed_times():
    mib, clock, bits = KNOWN
    seconds = {name: [0.03, 0.04] for name in computed.FAST_SCRUB}
    *_, last = computed.computed(mib * 2**20, computed.peak(clock, bits), seconds)
    assert last.samples == pytest.approx((120, 160))
    assert last.predicted == pytest.approx((108.5, 113.6), abs=0.1)
    assert last.because.startswith("102.0 ms at the peak")
