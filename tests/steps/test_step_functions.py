"""Each step does what it says, twice, and reports what it saw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from scrubber.core import measured, step_results
from scrubber.core.measured import Cleared, Mismatch, Restored, Scratched, Verified
from scrubber.core.model import Blame, HealthRead, Outcome, ScrubPath, Step, StepResult, Vitals
from scrubber.devices.base import Gpu, NodeOrDeviceError, NotNowError, ProgramFailedError
from scrubber.devices.simulated import drills, layout
from scrubber.devices.simulated.layout import Resetting
from scrubber.steps import step_functions
from scrubber.steps.orders import Order, Report, StepContext
from tests.core import lives

ORDER = Order(patterns=("random", "zero"), key="00ff" * 8)
SECRET = b"the launch code is 0000"


def saying(**answers: object) -> Gpu:
    """A GPU that answers so, whatever it is asked for."""
    return cast("Gpu", SimpleNamespace(**{name: lambda *_, it=it, **__: it for name, it in answers.items()}))


def bench(gpu: Gpu) -> StepContext:
    return StepContext(gpu, lambda: (), lambda _done, _total: None)


def perform(step: Step, bank) -> Report:
    return step_functions.perform(step, ORDER, bench(bank.gpu(bank.first)))


def judged(step: Step, report: Report) -> StepResult:
    result = StepResult(step, ScrubPath.SLOW, report.outcome, 0.0, report.detail, report.blame, report.findings)
    return step_results.judged(result, lives.SCRUBBING)


@pytest.mark.parametrize("step", Step)
def test_every_step_passes_on_a_good_device_and_passes_again(bank, step: Step) -> None:
    gpu = bench(bank.gpu(bank.first))
    if step is Step.VERIFY:
        step_functions.perform(Step.CLEAR, ORDER, gpu)  # a worker reads back what it has written
    assert [step_functions.perform(step, ORDER, gpu).outcome for _ in range(2)] == [Outcome.PASSED, Outcome.PASSED]


@pytest.mark.parametrize("step", [step for step in Step if step is not Step.EVICT])
def test_no_step_passes_on_a_lost_device(bank, step: Step) -> None:
    drills.lose(bank.root, bank.first)
    report = perform(step, bank)
    assert (report.outcome, report.blame) == (Outcome.FAILED, Blame.DEVICE)
    assert "fallen off the bus" in report.detail
    assert report.findings == HealthRead(Vitals(lost=True))


def test_clear_and_verify_remove_a_secret(bank) -> None:
    drills.occupy(bank.root, bank.first, SECRET, "pod-a")
    drills.release(bank.root, bank.first)
    assert drills.scan(bank.root, bank.first, SECRET) == 3
    gpu = bench(bank.gpu(bank.first))
    cleared, verified = (step_functions.perform(step, ORDER, gpu) for step in (Step.CLEAR, Step.VERIFY))
    assert drills.scan(bank.root, bank.first, SECRET) == 0
    size = bank.place(bank.first).memory.stat().st_size
    places = (0, size // 2, size - len(SECRET))
    found = Cleared(size, 3 * len(SECRET), size, residue_at=places, patterns=("random", "zero"))
    assert cleared == Report(Outcome.PASSED, findings=found)
    assert verified == Report(Outcome.PASSED, findings=Verified(size, ("zero",), size))


def test_verify_fails_on_a_skipped_clear(bank) -> None:
    drills.occupy(bank.root, bank.first, SECRET, "pod-a")
    drills.release(bank.root, bank.first)
    drills.skip_clears(bank.root, bank.first)
    gpu, zeros = bench(bank.gpu(bank.first)), Order(patterns=("zero",))
    assert step_functions.perform(Step.CLEAR, zeros, gpu).outcome is Outcome.PASSED
    verified = step_functions.perform(Step.VERIFY, zeros, gpu)
    assert isinstance(verified.findings, Verified)
    assert verified.findings.mismatch == Mismatch(0, 0, SECRET[0], 3 * len(SECRET))
    assert judged(Step.VERIFY, verified).outcome is Outcome.FAILED


def test_bad_memory_fails_the_clear_and_says_where(bank) -> None:
    drills.bad_memory(bank.root, bank.first, offset=0x1234, bit=7)
    report = step_functions.perform(Step.CLEAR, Order(patterns=("zero", "zero")), bench(bank.gpu(bank.first)))
    assert isinstance(report.findings, Cleared)
    assert report.findings.mismatch == Mismatch(0x1234, 0, 0x80, 1)
    assert "offset 0x1234 (wrote 0x00, read 0x80)" in judged(Step.CLEAR, report).detail


def test_a_clear_of_bad_memory_reports_no_patterns(bank) -> None:
    drills.bad_memory(bank.root, bank.first)
    cleared = perform(Step.CLEAR, bank).findings
    assert isinstance(cleared, Cleared)
    assert cleared.patterns == ()


def test_a_secret_is_gone_from_the_chip_after_a_scratch(bank) -> None:
    on_chip = layout.find(bank.root, bank.first).chip
    drills.occupy(bank.root, bank.first, SECRET, "pod-a")
    drills.release(bank.root, bank.first)
    assert on_chip.read_bytes().count(SECRET) == 2
    assert perform(Step.SCRATCH, bank) == Report(Outcome.PASSED, findings=Scratched(layout.UNITS, layout.UNITS))
    assert SECRET not in on_chip.read_bytes()


def test_a_skipped_clear_fails_on_clean_memory(bank) -> None:
    drills.skip_clears(bank.root, bank.first)
    report = perform(Step.CLEAR, bank)
    assert isinstance(report.findings, Cleared)
    assert report.findings.patterns == ()
    assert "memory does not hold what is written to it" in judged(Step.CLEAR, report).detail


def test_a_skipped_scratch_fails(bank) -> None:
    drills.skip_scratch(bank.root, bank.first)
    report = perform(Step.SCRATCH, bank)
    assert isinstance(report.findings, Scratched)
    assert report.findings.units_faulty == layout.UNITS
    assert judged(Step.SCRATCH, report).outcome is Outcome.FAILED


def report_of(step: Step, said: Scratched | measured.Tested) -> Report:
    return step_functions.perform(step, ORDER, bench(saying(scratch=said, selftest=said)))


def test_a_scratch_reports_all_that_it_counted() -> None:
    scratched = Scratched(8, 7, 2, 99, ("caches",))
    assert report_of(Step.SCRATCH, scratched) == Report(Outcome.PASSED, findings=scratched)


def test_a_self_test_reports_all_that_it_found() -> None:
    wrong = Mismatch(16, 0, 1, 3)
    tested = measured.Tested(("address",), ("random", "retention"), 4096, wrong, 8, (2, 5), ("a page was retired",))
    report = report_of(Step.SELFTEST, tested)
    assert report.findings == tested
    assert report.detail == "no time was left for random, retention; a page was retired"


def test_each_step_derives_a_key_of_its_own(bank) -> None:
    gpu = Mock(wraps=bank.gpu(bank.first))
    order = Order(patterns=("zero",), key="00ff" * 8, seconds=7.5, census=16)
    for step in (Step.CLEAR, Step.SCRATCH, Step.SELFTEST):
        step_functions.perform(step, order, bench(gpu))
    key, _, _, census = gpu.clear.call_args.args
    (of_test, seconds, _), (of_scratch,) = gpu.selftest.call_args.args, gpu.scratch.call_args.args
    assert (len({key, of_test, of_scratch}), {len(it) for it in (key, of_test, of_scratch)}) == (3, {16})
    assert (seconds, census) == (7.5, 16)
    assert order.key_for("scratch") != Order(key="00fe" * 8).key_for("scratch")


@pytest.mark.parametrize("step", [Step.SCRATCH, Step.SELFTEST])
def test_without_a_key_no_step_touches_the_device(bank, step: Step) -> None:
    with pytest.raises(ValueError, match="the order has none"):
        step_functions.perform(step, Order(), bench(bank.gpu(bank.first)))


def test_a_refused_reset_fails_with_the_words_of_the_driver(bank) -> None:
    drills.break_reset(bank.root, bank.first, Resetting.REFUSED)
    assert perform(Step.RESET, bank) == Report(Outcome.FAILED, "cannot reset: the device is in use by another client")


def test_settings_tell_what_had_drifted(bank) -> None:
    drills.drift(bank.root, bank.first, power_limit_watts=500)
    assert perform(Step.SETTINGS, bank).findings == Restored(("power_limit_watts: 500 -> 350",))


def test_health_tells_what_it_saw_and_does_not_judge(bank) -> None:
    drills.ecc(bank.root, bank.first, 9)
    assert perform(Step.HEALTH, bank) == Report(Outcome.PASSED, findings=HealthRead(Vitals(ecc_uncorrectable=9)))


def test_health_that_cannot_be_read_fails(bank) -> None:
    gpu = bank.gpu(bank.first)
    bank.place(bank.first).counters.write_text("{")
    report = step_functions.perform(Step.HEALTH, ORDER, bench(gpu))
    assert report.outcome is Outcome.FAILED
    assert "counters.json" in report.detail


def test_an_obstacle_of_a_step_is_no_device_fault() -> None:
    gpu = Mock(**{"reset.side_effect": NotNowError("cannot reset: it is open")})
    assert step_functions.perform(Step.RESET, ORDER, bench(gpu)) == Report(
        Outcome.FAILED, "cannot reset: it is open", Blame.SERVICE
    )


def test_a_program_that_failed_blames_no_device_yet() -> None:
    gpu = Mock(**{"verify.side_effect": NodeOrDeviceError("CUDA does not start")})
    report = Report(Outcome.FAILED, "CUDA does not start", Blame.NODE_OR_DEVICE)
    assert step_functions.perform(Step.VERIFY, ORDER, bench(gpu)) == report
    gpu = Mock(**{"verify.side_effect": ProgramFailedError("a kernel failed")})
    assert step_functions.perform(Step.VERIFY, ORDER, bench(gpu)) == Report(
        Outcome.FAILED, "a kernel failed", Blame.UNDECIDED
    )


def test_a_bug_is_not_a_report(bank) -> None:
    with pytest.raises(ValueError, match="cannot write pattern"):
        step_functions.perform(Step.CLEAR, Order(patterns=("noise",)), bench(bank.gpu(bank.first)))


def test_what_prevents_a_preparation_is_left_to_the_step() -> None:
    step_functions.prepare(bench(Mock(**{"prepare.side_effect": NotNowError("busy")})))
    with pytest.raises(ValueError, match="a bug"):
        step_functions.prepare(bench(Mock(**{"prepare.side_effect": ValueError("a bug")})))
