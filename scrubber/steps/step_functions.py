"""Prepares and performs a step by its function; turns a device's error into a failed step."""

from __future__ import annotations

from collections.abc import Callable

from scrubber.core.model import Blame, HealthRead, Outcome, Step, Vitals
from scrubber.devices import shortage
from scrubber.devices.base import DeviceError, DeviceLostError, NodeOrDeviceError, NotNowError, ProgramFailedError
from scrubber.steps import evict, on_device
from scrubber.steps.orders import Order, Report, StepContext

STEPS: dict[Step, Callable[[Order, StepContext], Report]] = {
    Step.EVICT: evict.run,
    Step.RESET: on_device.reset,
    Step.CLEAR: on_device.clear,
    Step.VERIFY: on_device.verify,
    Step.SCRATCH: on_device.scratch,
    Step.SELFTEST: on_device.selftest,
    Step.SETTINGS: on_device.settings,
    Step.HEALTH: on_device.health,
}


def prepare(context: StepContext) -> None:
    """Prepare the device for the steps on memory. What fails now fails again in the step, which reports it."""
    try:
        context.gpu.prepare()
    except Exception as error:
        if _report(error) is None:
            raise


def perform(step: Step, order: Order, context: StepContext) -> Report:
    """Run a step. Errors of the device and shortages become a report; any other error is a bug and ends the worker."""
    try:
        return STEPS[step](order, context)
    except Exception as error:
        report = _report(error)
        if report is None:
            raise
        return report


def _report(error: Exception) -> Report | None:
    lack = shortage.of(error)
    if lack is not None:
        return Report(Outcome.FAILED, f"{lack} ({error})", Blame.SERVICE)
    match error:
        case DeviceLostError():
            return Report(Outcome.FAILED, str(error), findings=HealthRead(Vitals(lost=True)))
        case NotNowError():
            return Report(Outcome.FAILED, str(error), Blame.SERVICE)
        case NodeOrDeviceError():
            return Report(Outcome.FAILED, str(error), Blame.NODE_OR_DEVICE)
        case ProgramFailedError():
            return Report(Outcome.FAILED, str(error), Blame.UNDECIDED)
        case DeviceError():
            return Report(Outcome.FAILED, str(error))
        case _:
            return None
