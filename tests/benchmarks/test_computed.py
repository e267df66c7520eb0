"""The page of computed figures is the one that is made now, and the trial prints it beside its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import computed
from benchmarks.trial.computed import FAST_SCRUB
from benchmarks.trial.computed import computed as beside

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "computed.md"


def test_the_page_is_what_the_program_prints():
    """Red? make docs."""
    assert PAGE.read_text() == f"{computed.page()}\n"


def test_the_trial_prints_measured_beside_computed_times():
    seconds = {name: [0.03, 0.04] for name in FAST_SCRUB}
    *_, last = beside(computed.GPUS[0].size, computed.GPUS[0].peak, seconds)
    assert last.samples == pytest.approx((120, 160))
    assert last.predicted == pytest.approx((108.5, 113.6), abs=0.1)
    assert last.because.startswith("102.0 ms at the peak")
