"""Reads all of the memory: every byte must be zero. Does not rely on the clear before it."""

from __future__ import annotations

from scrubber.core.measurements import Mismatch
from scrubber.core.model import Findings, Outcome
from scrubber.steps.base import Bench, Order, Report


def run(_order: Order, bench: Bench) -> Report:
    """Passes when bytes were read and all of them were zero."""
    verified = bench.gpu.verify(bench.progress)
    findings = Findings(
        covered_bytes=verified.covered_bytes,
        allocatable_bytes=verified.allocatable_bytes,
        mismatch=verified.mismatch,
    )
    if verified.mismatch is not None:
        return Report(Outcome.FAILED, _describe(verified.mismatch), findings=findings)
    if verified.covered_bytes == 0:
        return Report(Outcome.FAILED, "nothing was read back", findings=findings)
    return Report(Outcome.PASSED, findings=findings)


def _describe(wrong: Mismatch) -> str:
    # Where and how many, not which values: a byte that is left may belong to a tenant.
    return f"memory is not zero after the clear: {wrong.count} bytes, the first at offset {wrong.offset:#x}"
