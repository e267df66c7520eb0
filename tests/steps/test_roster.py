"""Each step does what it says, twice, and passes only on what it saw."""

from __future__ import annotations

import sys

import pytest

from scrubber.core.model import Blame, Findings, Mismatch, Outcome, Step, Vitals
from scrubber.devices.base import Cleared, Gpu, Verified
from scrubber.devices.simulated import drills, tenants
from scrubber.devices.simulated.documents import Resetting
from scrubber.devices.simulated.gpu import SimulatedGpu
from scrubber.steps import roster
from scrubber.steps.base import Bench, Order, Report

ORDER = Order(patterns=("random", "zero"), key="00ff" * 8)
SECRET = b"the launch code is 0000"


class LazyGpu(SimulatedGpu):
    """Says that it cleared, and did not."""

    def clear(self, *_: object) -> Cleared:
        """Nothing at all."""
        size = self._place.memory.stat().st_size
        return Cleared(size, size, 0)


class EmptyGpu(SimulatedGpu):
    """Reaches no memory, and finds nothing wrong with it."""

    def clear(self, *_: object) -> Cleared:
        """Nothing was reached."""
        return Cleared(0, 4096, 0)

    def verify(self, *_: object) -> Verified:
        """Nothing was reached."""
        return Verified(0, 4096)


def bench(gpu: Gpu) -> Bench:
    return Bench(gpu, lambda: (), lambda _done, _total: None)


def perform(step: Step, bank) -> Report:
    return roster.perform(step, ORDER, bench(bank.gpu(bank.first)))


def test_there_is_a_module_for_every_step_and_no_two_share_one() -> None:
    modules = {step: sys.modules[f"scrubber.steps.{step.value}"] for step in Step}
    assert modules == roster.STEPS


@pytest.mark.parametrize("step", Step)
def test_every_step_passes_on_a_good_device_and_passes_again(bank, step: Step) -> None:
    assert [perform(step, bank).outcome for _ in range(2)] == [Outcome.PASSED, Outcome.PASSED]


@pytest.mark.parametrize("step", set(Step) - {Step.EVICT})
def test_no_step_passes_on_a_lost_device(bank, step: Step) -> None:
    drills.lose(bank.root, bank.first)
    report = perform(step, bank)
    assert (report.outcome, report.blame) == (Outcome.FAILED, Blame.DEVICE)
    assert "fallen off the bus" in report.detail
    assert report.findings.vitals == Vitals(lost=True)


def test_a_secret_is_gone_from_the_memory_after_clear_and_verify(bank) -> None:
    tenants.occupy(bank.root, bank.first, SECRET, "pod-a")
    tenants.release(bank.root, bank.first)
    assert tenants.scan(bank.root, bank.first, SECRET) == 3
    cleared, verified = perform(Step.CLEAR, bank), perform(Step.VERIFY, bank)
    assert tenants.scan(bank.root, bank.first, SECRET) == 0
    size = bank.place(bank.first).memory.stat().st_size
    assert cleared == Report(Outcome.PASSED, findings=Findings(size, size, 3 * len(SECRET)))
    assert verified == Report(Outcome.PASSED, findings=Findings(size, size))


def test_a_device_that_skips_the_clear_does_not_get_past_verify(bank) -> None:
    tenants.occupy(bank.root, bank.first, SECRET, "pod-a")
    tenants.release(bank.root, bank.first)
    lazy = LazyGpu(bank.place(bank.first).directory)
    assert roster.perform(Step.CLEAR, ORDER, bench(lazy)).outcome is Outcome.PASSED
    verified = roster.perform(Step.VERIFY, ORDER, bench(lazy))
    assert (verified.outcome, verified.blame) == (Outcome.FAILED, Blame.DEVICE)
    assert verified.findings.mismatch == Mismatch(0, 0, SECRET[0], 3 * len(SECRET))


@pytest.mark.parametrize("step", [Step.CLEAR, Step.VERIFY])
def test_reaching_no_memory_is_no_pass(bank, step: Step) -> None:
    report = roster.perform(step, ORDER, bench(EmptyGpu(bank.place(bank.first).directory)))
    assert report.outcome is Outcome.FAILED
    assert "nothing was" in report.detail


def test_bad_memory_fails_the_clear_and_says_where(bank) -> None:
    drills.bad_memory(bank.root, bank.first, offset=0x1234, bit=7)
    report = roster.perform(Step.CLEAR, Order(), bench(bank.gpu(bank.first)))
    assert (report.outcome, report.blame) == (Outcome.FAILED, Blame.DEVICE)
    assert "offset 0x1234 (wrote 0x00, read 0x80)" in report.detail
    assert report.findings.mismatch == Mismatch(0x1234, 0, 0x80, 1)


def test_a_refused_reset_fails_with_the_words_of_the_driver(bank) -> None:
    drills.break_reset(bank.root, bank.first, Resetting.REFUSED)
    assert perform(Step.RESET, bank) == Report(Outcome.FAILED, "cannot reset: the device is in use by another client")


def test_settings_tell_what_had_drifted(bank) -> None:
    drills.drift(bank.root, bank.first, power_limit_watts=500)
    assert perform(Step.SETTINGS, bank).findings.drift == ("power_limit_watts: 500 -> 350",)


def test_health_tells_what_it_saw_and_does_not_judge(bank) -> None:
    drills.ecc(bank.root, bank.first, 9)
    assert perform(Step.HEALTH, bank) == Report(Outcome.PASSED, findings=Findings(vitals=Vitals(ecc_uncorrectable=9)))


def test_health_that_cannot_be_read_fails(bank) -> None:
    gpu = bank.gpu(bank.first)
    bank.place(bank.first).counters.write_text("{")
    report = roster.perform(Step.HEALTH, ORDER, bench(gpu))
    assert report.outcome is Outcome.FAILED
    assert "counters.json" in report.detail


def test_a_bug_is_not_a_report(bank) -> None:
    with pytest.raises(ValueError, match="cannot write pattern"):
        roster.perform(Step.CLEAR, Order(patterns=("ones",)), bench(bank.gpu(bank.first)))
