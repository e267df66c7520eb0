"""The steps on the device itself: reset, clear, verify, scratch, selftest, settings, health. None calls another one.

A step does its work and reports. Whether the report shows a fault is decided in ``core/step_results``.
"""

from __future__ import annotations

from dataclasses import replace

from scrubber.core.model import HealthRead, Outcome
from scrubber.steps.orders import Order, Report, StepContext


def reset(_order: Order, context: StepContext) -> Report:
    """Reset the device, which drops its volatile state. Passes when the device is back."""
    return Report(Outcome.PASSED, context.gpu.reset())


def clear(order: Order, context: StepContext) -> Report:
    """Overwrite all of the memory, and read back each pattern but the last, which is left to ``verify``."""
    key = bytes.fromhex(order.key)
    cleared = context.gpu.clear(key, order.patterns, context.progress, order.census)
    written = order.patterns if cleared.mismatch is None else ()
    return Report(Outcome.PASSED, findings=replace(cleared, patterns=written))


def verify(_order: Order, context: StepContext) -> Report:
    """Read all of the memory, with the allocations and the CUDA kernel that ``clear`` used."""
    return Report(Outcome.PASSED, findings=context.gpu.verify(context.progress))


def scratch(order: Order, context: StepContext) -> Report:
    """Overwrite shared memory and registers, which no allocation reaches, and read them back."""
    return Report(Outcome.PASSED, findings=context.gpu.scratch(order.key_for("scratch")))


def selftest(order: Order, context: StepContext) -> Report:
    """Test whether the memory holds what is written, and whether the units compute correctly. Leaves zeros."""
    tested = context.gpu.selftest(order.key_for("selftest"), order.seconds, context.progress)
    notes = (f"no time was left for {', '.join(tested.skipped)}",) if tested.skipped else ()
    return Report(Outcome.PASSED, "; ".join((*notes, *tested.repaired)), findings=tested)


def settings(_order: Order, context: StepContext) -> Report:
    """Restore clocks, limits and modes, so that no tenant finds the settings of another tenant.

    Passes when the restored values are in force.
    """
    return Report(Outcome.PASSED, findings=context.gpu.restore_settings())


def health(_order: Order, context: StepContext) -> Report:
    """Read the vitals of the device. ``core`` judges them; this step only needs an answer."""
    return Report(Outcome.PASSED, findings=HealthRead(context.gpu.vitals()))
