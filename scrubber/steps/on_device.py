"""The steps that the device itself does: all but ``evict``. No step calls another one."""

from __future__ import annotations

from dataclasses import replace

from ground.quantities import quantity
from scrubber.core.measurements import Tested
from scrubber.core.model import Blame, Findings, Outcome
from scrubber.steps.base import Order, Report, StepContext

_TOO_LATE = "no test came to its end: selftest.time in the policy may be too short"


def reset(_order: Order, context: StepContext) -> Report:
    """Reset the device, which drops its volatile state. Passes when the device is back."""
    return Report(Outcome.PASSED, context.gpu.reset())


def clear(order: Order, context: StepContext) -> Report:
    """Overwrite all of the memory, and read back each pattern but the last, which is left to ``verify``.

    Passes when bytes were written, and all that was read back was as written.
    """
    key = bytes.fromhex(order.key)
    cleared = context.gpu.clear(key, order.patterns, context.progress, order.census)
    if (wrong := cleared.mismatch) is not None:
        detail = (
            f"memory does not hold what is written to it: {quantity(wrong.count, 'byte differs', 'bytes differ')},"
            f" the first at offset {wrong.offset:#x} (wrote {wrong.expected:#04x}, read {wrong.got:#04x})"
        )
        return Report(Outcome.FAILED, detail, findings=cleared)
    if not cleared.covered_bytes:
        return Report(Outcome.FAILED, "nothing was overwritten", findings=cleared)
    return Report(Outcome.PASSED, findings=replace(cleared, patterns=order.patterns))


def verify(_order: Order, context: StepContext) -> Report:
    """Read all of the memory, with the allocations and the CUDA kernel that ``clear`` used.

    Passes when bytes were read and all of them were as they were last written.
    """
    verified = context.gpu.verify(context.progress)
    if (left := verified.mismatch) is not None:
        # Where and how many, not which values: a byte that is left may belong to a tenant.
        differ = quantity(left.count, "byte differs", "bytes differ")
        detail = f"memory does not hold the last pattern of the clear: {differ}, the first at offset {left.offset:#x}"
        return Report(Outcome.FAILED, detail, findings=verified)
    if not verified.covered_bytes:
        return Report(Outcome.FAILED, "nothing was read back", findings=verified)
    return Report(Outcome.PASSED, findings=verified)


def scratch(order: Order, context: StepContext) -> Report:
    """Overwrite the on-chip memory, which no allocation reaches, and read it back.

    Passes when there are units, every unit was reached, and each unit held what was written.
    """
    found = context.gpu.scratch(order.key_for("scratch"))
    findings = Findings(
        units=found.units,
        units_reached=found.reached,
        units_faulty=found.faulty,
        shared_unreached_bytes=found.unreached_bytes,
    )
    if found.faulty:
        wrong = f"memory on the chip does not hold what is written to it, on {quantity(found.faulty, 'unit')}"
        return Report(Outcome.FAILED, wrong, findings=findings)
    if found.reached != found.units or found.reached <= 0:
        return Report(Outcome.FAILED, "memory on the chip was not overwritten everywhere", findings=findings)
    return Report(Outcome.PASSED, findings=findings)


def selftest(order: Order, context: StepContext) -> Report:
    """Test whether the memory holds what is written, and whether the units compute correctly. Leaves zeros.

    Passes when at least one test was completed and no test found a fault.
    """
    tested = context.gpu.selftest(order.key_for("selftest"), order.seconds, context.progress)
    findings = Findings(
        covered_bytes=tested.covered_bytes,
        mismatch=tested.mismatch,
        units=tested.units,
        deviating=tested.deviating,
    )
    wrong = _fault(tested)
    if wrong:
        return Report(Outcome.FAILED, wrong, findings=findings)
    if not tested.tests:
        return Report(Outcome.FAILED, _TOO_LATE, Blame.SERVICE, findings)  # the node may be busy
    notes = (f"no time was left for {', '.join(tested.skipped)}",) if tested.skipped else ()
    return Report(Outcome.PASSED, "; ".join((*notes, *tested.repaired)), findings=replace(findings, tests=tested.tests))


def _fault(tested: Tested) -> str:
    # Where and how many, not which values: the test reads zeros at its end, and another byte may belong to a tenant.
    if (at := tested.mismatch) is not None:
        return f"memory failed its test: {quantity(at.count, 'byte')}, the first at offset {at.offset:#x}"
    if tested.deviating:
        return f"these units compute other results than most: {', '.join(map(str, tested.deviating))}"
    if not tested.covered_bytes and not tested.units:
        return "nothing was tested: no memory, and no unit"
    return ""


def settings(_order: Order, context: StepContext) -> Report:
    """Restore clocks, limits and modes to the baseline, so that no tenant finds the settings of another tenant.

    Passes when the baseline is in force. A named setting that the device does not support is only reported.
    """
    findings = context.gpu.restore_settings()
    return Report(Outcome.PASSED, "; ".join(findings.unsupported), findings=findings)


def health(_order: Order, context: StepContext) -> Report:
    """Read the vitals of the device. ``core`` judges them; this step only needs an answer."""
    return Report(Outcome.PASSED, findings=Findings(vitals=context.gpu.vitals()))
