"""The page of computed figures says what follows from the shipped kernels, and the trial prints it beside its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import computed
from benchmarks.trial.computed import FAST_SCRUB
from benchmarks.trial.computed import computed as beside
from tests.fakes.cuda.emulation import disassembler

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "computed.md"
disassembles = pytest.mark.skipif(disassembler() is None, reason="nvdisasm is not installed: see pyproject.toml")


@pytest.fixture(scope="module")
def images():
    return computed.shipped()


@disassembles
def test_the_page_has_the_tables_of_the_shipped_kernels(images):
    """Red? Then the kernels or their launches were changed: make docs."""
    page = PAGE.read_text()
    assert [it in page for it in (computed.instructions(images), computed.passes())] == [True] * 2


@disassembles
def test_a_keyed_vector_takes_so_many_instructions(images):
    assert (images[90].per_vector("write"), images[90].per_vector("check")) == (41.25, 45.25)


@disassembles
@pytest.mark.night
def test_the_page_is_what_the_program_prints():
    assert PAGE.read_text() == f"{computed.page()}\n"


def test_the_trial_prints_measured_beside_computed_times():
    seconds = {name: [0.03, 0.04] for name in FAST_SCRUB}
    *_, last = beside(computed.GPUS[0].size, computed.GPUS[0].peak, seconds)
    assert last.samples == pytest.approx((120, 160))
    assert last.predicted == pytest.approx((108.5, 113.6), abs=0.1)
    assert last.because.startswith("102.0 ms at the peak")
