"""Reads all of the memory: every byte must be zero. It uses the allocations and the kernel of the clear before it."""

from __future__ import annotations

from scrubber.core.measurements import Mismatch
from scrubber.core.model import Outcome
from scrubber.steps.base import Order, Report, StepContext


def run(_order: Order, context: StepContext) -> Report:
    """Passes when bytes were read and all of them were zero."""
    verified = context.gpu.verify(context.progress)
    if verified.mismatch is not None:
        return Report(Outcome.FAILED, _describe(verified.mismatch), findings=verified)
    if not verified.covered_bytes:
        return Report(Outcome.FAILED, "nothing was read back", findings=verified)
    return Report(Outcome.PASSED, findings=verified)


def _describe(wrong: Mismatch) -> str:
    # Where and how many, not which values: a byte that is left may belong to a tenant.
    return f"memory is not zero after the clear: {wrong.count} bytes, the first at offset {wrong.offset:#x}"
