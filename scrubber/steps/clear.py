"""Overwrites all of the memory, and reads back the patterns that were written; the last one may be left to verify."""

from __future__ import annotations

from dataclasses import replace

from scrubber.core.measurements import Mismatch
from scrubber.core.model import Outcome
from scrubber.steps.base import Order, Report, StepContext


def run(order: Order, context: StepContext) -> Report:
    """Passes when bytes were written, and all that was read back was as written."""
    key = bytes.fromhex(order.key)
    cleared = context.gpu.clear(key, order.patterns, context.progress, order.census, confirm=order.confirm)
    if cleared.mismatch is not None:
        return Report(Outcome.FAILED, _describe(cleared.mismatch), findings=cleared)
    if not cleared.covered_bytes:
        return Report(Outcome.FAILED, "nothing was overwritten", findings=cleared)
    return Report(Outcome.PASSED, findings=replace(cleared, patterns=order.patterns))


def _describe(wrong: Mismatch) -> str:
    return (
        f"memory does not hold what is written to it: {wrong.count} bytes differ, the first at offset "
        f"{wrong.offset:#x} (wrote {wrong.expected:#04x}, read {wrong.got:#04x})"
    )
