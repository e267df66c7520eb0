"""The list of steps. Turns an error of the device into a failed step."""

from __future__ import annotations

from scrubber.core.model import Blame, Findings, Outcome, Step, Vitals
from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError
from scrubber.steps import clear, evict, health, reset, scratch, selftest, settings, verify
from scrubber.steps.base import Bench, Order, Report, StepModule

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


def perform(step: Step, order: Order, bench: Bench) -> Report:
    """Run a step. Only an error of the device becomes a report; any other error is a bug and ends the worker."""
    try:
        return STEPS[step].run(order, bench)
    except DeviceLostError as error:
        return Report(Outcome.FAILED, str(error), findings=Findings(vitals=Vitals(lost=True)))
    except NotNowError as error:
        return Report(Outcome.FAILED, str(error), Blame.SERVICE)
    except DeviceError as error:
        return Report(Outcome.FAILED, str(error))
