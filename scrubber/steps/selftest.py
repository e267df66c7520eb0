"""Tests whether the memory holds what is written, and whether the units compute correctly. Leaves zeros."""

from __future__ import annotations

from dataclasses import replace

from scrubber.core.measurements import Tested
from scrubber.core.model import Blame, Findings, Outcome
from scrubber.steps.base import Order, Report, StepContext

_TOO_LATE = "no test came to its end: selftest.time in the policy may be too short"


def run(order: Order, context: StepContext) -> Report:
    """Passes when at least one test was completed and no test found a fault."""
    tested = context.gpu.selftest(order.key_for("selftest"), order.seconds, context.progress)
    findings = Findings(
        covered_bytes=tested.covered_bytes,
        mismatch=tested.mismatch,
        units=tested.units,
        deviating=tested.deviating,
    )
    wrong = _wrong(tested)
    if wrong:
        return Report(Outcome.FAILED, wrong, findings=findings)
    if not tested.tests:
        return Report(Outcome.FAILED, _TOO_LATE, Blame.SERVICE, findings)  # the node may be busy
    notes = (f"no time was left for {', '.join(tested.skipped)}",) if tested.skipped else ()
    return Report(Outcome.PASSED, "; ".join((*notes, *tested.repaired)), findings=replace(findings, tests=tested.tests))


def _wrong(tested: Tested) -> str:
    # Where and how many, not which values: the test reads zeros at its end, and another byte may belong to a tenant.
    if (at := tested.mismatch) is not None:
        return f"memory failed its test: {at.count} bytes, the first at offset {at.offset:#x}"
    if tested.deviating:
        return f"these units compute other results than most: {', '.join(map(str, tested.deviating))}"
    if not tested.covered_bytes and not tested.units:
        return "nothing was tested: no memory, and no unit"
    return ""
