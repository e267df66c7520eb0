"""Read all of the memory: nothing but zeros may be left. Does not trust the clear before it."""

from __future__ import annotations

from scrubber.core.measurements import Mismatch
from scrubber.core.model import Findings, Outcome
from scrubber.steps.base import Bench, Order, Report


def run(_order: Order, bench: Bench) -> Report:
    """Passes when something was read and all of it was zero."""
    verified = bench.gpu.verify(bench.progress)
    findings = Findings(
        covered_bytes=verified.covered_bytes,
        allocatable_bytes=verified.allocatable_bytes,
        mismatch=verified.mismatch,
    )
    if verified.mismatch is not None:
        return Report(Outcome.FAILED, _tell(verified.mismatch), findings=findings)
    if verified.covered_bytes == 0:
        return Report(Outcome.FAILED, "nothing was read back", findings=findings)
    return Report(Outcome.PASSED, findings=findings)


def _tell(wrong: Mismatch) -> str:
    # Where and how much, not what: a byte that is left may be a tenant's.
    return f"memory is not zero after the clear: {wrong.count} bytes, the first at offset {wrong.offset:#x}"
