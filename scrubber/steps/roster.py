"""Which module does which step. Turns an error of the device into a failed step."""

from __future__ import annotations

from scrubber.core.model import Blame, Findings, Outcome, Step, Vitals
from scrubber.devices import shortage
from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError
from scrubber.steps import clear, evict, health, reset, scratch, selftest, settings, verify
from scrubber.steps.base import Order, Report, StepContext, StepModule

STEPS: dict[Step, StepModule] = {
    Step.EVICT: evict,
    Step.RESET: reset,
    Step.CLEAR: clear,
    Step.VERIFY: verify,
    Step.SCRATCH: scratch,
    Step.SELFTEST: selftest,
    Step.SETTINGS: settings,
    Step.HEALTH: health,
}


def prepare(context: StepContext) -> None:
    """Prepare the device for the steps on memory. What fails now fails again in the step, which reports it."""
    try:
        context.gpu.prepare()
    except Exception as error:
        if shortage.of(error) is None and not isinstance(error, DeviceError):
            raise


def perform(step: Step, order: Order, context: StepContext) -> Report:
    """Run a step. Errors of the device and shortages become a report; any other error is a bug and ends the worker."""
    try:
        return STEPS[step].run(order, context)
    except Exception as error:
        lack = shortage.of(error)
        if lack is not None:
            return Report(Outcome.FAILED, f"{lack} ({error})", Blame.SERVICE)
        if isinstance(error, DeviceError):
            return _report(error)
        raise


def _report(error: DeviceError) -> Report:
    match error:
        case DeviceLostError():
            return Report(Outcome.FAILED, str(error), findings=Findings(vitals=Vitals(lost=True)))
        case NotNowError():
            return Report(Outcome.FAILED, str(error), Blame.SERVICE)
        case _:
            return Report(Outcome.FAILED, str(error))
