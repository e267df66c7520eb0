"""Overwrites the on-chip memory, which no allocation reaches, and reads it back."""

from __future__ import annotations

from scrubber.core.model import Findings, Outcome
from scrubber.steps.base import Order, Report, StepContext


def run(order: Order, context: StepContext) -> Report:
    """Passes when there are units, every unit was reached, and each unit held what was written."""
    found = context.gpu.scratch(order.key_for("scratch"))
    findings = Findings(
        units=found.units,
        units_reached=found.reached,
        units_faulty=found.faulty,
        shared_unreached_bytes=found.unreached_bytes,
    )
    if found.faulty:
        wrong = f"memory on the chip does not hold what is written to it, on {found.faulty} unit(s)"
        return Report(Outcome.FAILED, wrong, findings=findings)
    if found.reached != found.units or found.reached <= 0:
        return Report(Outcome.FAILED, "memory on the chip was not overwritten everywhere", findings=findings)
    return Report(Outcome.PASSED, findings=findings)
