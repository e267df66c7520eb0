"""Overwrites all of the memory, and reads back every pattern that was written."""

from __future__ import annotations

from dataclasses import replace

from scrubber.core.measurements import Mismatch
from scrubber.core.model import Findings, Outcome
from scrubber.steps.base import Bench, Order, Report


def run(order: Order, bench: Bench) -> Report:
    """Passes when bytes were written and all of them were read back."""
    cleared = bench.gpu.clear(bytes.fromhex(order.key), order.patterns, bench.progress)
    findings = Findings(
        covered_bytes=cleared.covered_bytes,
        allocatable_bytes=cleared.allocatable_bytes,
        residue_bytes=cleared.residue_bytes,
        mismatch=cleared.mismatch,
        residue_at=cleared.residue_at,
        uncovered=cleared.uncovered,
    )
    if cleared.mismatch is not None:
        return Report(Outcome.FAILED, _describe(cleared.mismatch), findings=findings)
    if cleared.covered_bytes == 0:
        return Report(Outcome.FAILED, "nothing was overwritten", findings=findings)
    return Report(Outcome.PASSED, findings=replace(findings, patterns=order.patterns))


def _describe(wrong: Mismatch) -> str:
    return (
        f"memory does not hold what is written to it: {wrong.count} bytes differ, the first at offset "
        f"{wrong.offset:#x} (wrote {wrong.expected:#04x}, read {wrong.got:#04x})"
    )
