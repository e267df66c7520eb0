"""What the result of one step shows on its own.

Steps only report: faults in a report are found only here. The job asks once for each result, before the next step may
run. ``verdict`` and the ledger get the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from ground.quantities import quantity
from scrubber.core import plans
from scrubber.core.measured import Cleared, Mismatch, Scratched, Tested, Verified
from scrubber.core.model import Blame, Outcome, Step, StepResult
from scrubber.core.record import Record


class Fault(NamedTuple):
    """Why a step that ran to its end has not passed."""

    detail: str
    blame: Blame = Blame.DEVICE


def judged(result: StepResult, record: Record) -> StepResult:
    """The result; failed if its findings show a fault, or that too little was done to prove anything.

    ``record``: the device before the result.
    """
    fault = _fault(result) if result.outcome is Outcome.PASSED else None
    if fault is not None:
        result = replace(result, outcome=Outcome.FAILED, detail=fault.detail, blame=fault.blame)
    return _credited(result, record)


def unreported(results: Iterable[StepResult]) -> Step | None:
    """The first step that has not reported what it must find. Without that, a step that passed proves nothing."""
    return next((result.step for result in results if not _is_reported(result)), None)


def _is_reported(result: StepResult) -> bool:
    return isinstance(result.findings, plans.STEPS[result.step].finds)


def _credited(result: StepResult, record: Record) -> StepResult:
    """The result without old data that may be the pattern of an earlier clear: no owner is named for such data."""
    clear = result.findings
    scrubs = record.scrubs
    if not isinstance(clear, Cleared) or not (scrubs.half_cleared or (scrubs.pattern_left and clear.residue_bytes)):
        return result  # after a clear that did not prove anything, zeros may be ours, too
    found = f"{quantity(clear.residue_bytes, 'byte was', 'bytes were')} not zero before, which may be the pattern of"
    note = f"{found} an earlier clear" if clear.residue_bytes else ""
    detail = "; ".join(filter(None, (result.detail, note)))
    left_out = replace(clear, residue_bytes=0, residue_at=(), searched_bytes=0)
    return replace(result, detail=detail, findings=left_out)


def _fault(result: StepResult) -> Fault | None:
    if not _is_reported(result):
        return Fault("it did not report what it must find", Blame.SERVICE)
    match result.findings:
        case Cleared() as clear:
            return _not_written(clear) or _not_measured(clear, "overwritten") or _miscounted(clear)
        case Verified() as verify:
            return _not_as_written(verify) or _not_measured(verify, "read back")
        case Scratched() as scratch:
            return _not_overwritten(scratch)
        case Tested() as selftest:
            return _not_tested(selftest)
        case _:
            return None


def _not_written(clear: Cleared) -> Fault | None:
    if (wrong := clear.mismatch) is None:
        return None
    values = f"(wrote {wrong.expected:#04x}, read {wrong.got:#04x})"
    return Fault(f"memory does not hold what is written to it: {_differ(wrong)} {values}")


def _not_as_written(verify: Verified) -> Fault | None:
    # Where and how many, not which values: a byte that is left may belong to a tenant.
    if (left := verify.mismatch) is None:
        return None
    return Fault(f"memory does not hold the last pattern of the clear: {_differ(left)}")


def _differ(mismatch: Mismatch) -> str:
    return f"{quantity(mismatch.count, 'byte differs', 'bytes differ')}, the first at offset {mismatch.offset:#x}"


def _not_measured(findings: Cleared | Verified, done: str) -> Fault | None:
    """Clear and verify must report their coverage, and it must be possible. Coverage that was not measured is zero."""
    covered, own = findings.covered_bytes, findings.allocatable_bytes
    if not covered or not own:
        return Fault(f"nothing was {done}")
    if covered > own:
        return Fault(f"it says that it covered {covered} of {own} bytes: it counts wrongly")
    return None


def _miscounted(clear: Cleared) -> Fault | None:
    """The uncovered parts must not contradict the coverage. Bytes without a cause do not contradict it."""
    rest = clear.allocatable_bytes - clear.covered_bytes
    explained = sum(part.bytes for part in clear.uncovered)
    if explained <= rest and all(part.bytes >= 0 for part in clear.uncovered):
        return None
    parts = ", ".join(f"{part.bytes} for {part.cause}" for part in clear.uncovered)
    return Fault(f"it explains {rest} uncovered bytes as {parts}: it counts wrongly")


def _not_overwritten(scratch: Scratched) -> Fault | None:
    """Scratch must overwrite every unit."""
    if faulty := scratch.units_faulty:
        return Fault(f"memory on the chip does not hold what is written to it, on {quantity(faulty, 'unit')}")
    units, reached = scratch.units, scratch.units_reached
    if units <= 0 or reached != units:
        return Fault(f"memory on the chip was not overwritten everywhere: {reached} of {quantity(units, 'unit')}")
    return None


def _not_tested(selftest: Tested) -> Fault | None:
    # Where and how many, not which values: the test reads zeros at its end, and another byte may belong to a tenant.
    if (at := selftest.mismatch) is not None:
        return Fault(f"memory failed its test: {quantity(at.count, 'byte')}, the first at offset {at.offset:#x}")
    if selftest.deviating:
        return Fault(f"these units compute other results than most: {', '.join(map(str, selftest.deviating))}")
    if not selftest.covered_bytes and not selftest.units:
        return Fault("nothing was tested: no memory, and no unit")
    if not selftest.tests:  # the node may be busy
        return Fault("no test came to its end: selftest.time in the policy may be too short", Blame.SERVICE)
    return None
