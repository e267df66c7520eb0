"""The reset of a whole GPU: nobody on it, one means after the other, and a look at what came back.

Every part is time-boxed (``conditions.Patience``), so that a reset that goes wrong says what went wrong; the step's own
deadline kills this process anyway, whatever hangs in the driver. Before anything is done persistence mode is switched
off: a device that the driver keeps ready must not be reset under it, and the daemon has it open. Then NVML is closed
here, and the processes are looked at once more; the service has closed its own. Persistence mode comes back with the
device; where this process was killed in the middle, the settings step brings it back.

The next means is tried when the one before was refused or failed, but never when the driver knows of a client that we
do not see, or when the one before is still at it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pynvml

from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError
from scrubber.devices.nvidia import comeback, conditions, slices, smi, sysfs
from scrubber.devices.nvidia.attempt import Attempt, Done, Failed, InUse, NoPermission, Stuck, Unsupported
from scrubber.devices.nvidia.conditions import Target
from scrubber.devices.nvidia.knobs import on_or_off

TOOL, KERNEL = "nvidia-smi", "function"  # as policies name them
MEANS: dict[str, Callable[[Target], Attempt]] = {
    TOOL: lambda target: smi.reset(target.uuid, target.patience.tool),
    KERNEL: lambda target: sysfs.reset(target.function),
}

_BLINK = 0.05


class _StillAtItError(DeviceError):
    """A reset that cannot be ended: nobody may ask the driver for this device meanwhile."""


def reset(target: Target) -> None:
    """Passes when the same GPU is back, divided as it was, and wants nothing more."""
    with target.library.session() as session:
        if faults := conditions.unmet(session, target):
            raise NotNowError(f"cannot reset: {'; '.join(faults)}")
        layout = slices.layout_before_reset(session, target.uuid)
        joined = comeback.joined_before_reset(session, target.uuid)
    with _not_kept_ready(target) as idle:
        _do(target, idle=idle)
        comeback.wait(target, joined=joined)
        _divide(target, layout)


@contextmanager
def _not_kept_ready(target: Target) -> Iterator[bool]:
    """Persistence off, and back on if it was; False where that cannot be told. Not touched while nobody may ask."""
    with target.library.session() as session:
        mode = conditions.answered(session, target, pynvml.nvmlDeviceGetPersistenceMode)
    if mode != pynvml.NVML_FEATURE_ENABLED:
        yield mode is not None
        return
    _persist(target, pynvml.NVML_FEATURE_DISABLED)
    try:
        yield True
    except (DeviceLostError, _StillAtItError):
        raise
    except DeviceError as error:
        try:
            _persist(target, mode)
        except DeviceError as second:
            raise DeviceError(f"{error}; {second}") from error
        raise
    _persist(target, mode)


def _persist(target: Target, mode: int) -> None:
    with target.library.session() as session:
        device = session.handle(target.uuid)
        try:
            session.ask(pynvml.nvmlDeviceSetPersistenceMode, device, mode)
        except DeviceError as error:
            raise DeviceError(f"persistence mode cannot be switched {on_or_off(mode)}: {error}") from error


def _do(target: Target, *, idle: bool) -> None:
    target.library.let_go()
    try:
        _one_after_the_other(target, idle=idle)
    finally:
        target.library.take_up()


def _one_after_the_other(target: Target, *, idle: bool) -> None:
    """Each means once, until one says that it is done. The kernel asks nobody who is on the device, the tool does."""
    refusals = []
    for name in target.means:
        if name == KERNEL and not idle:
            refusals.append(f"{name}: nobody can tell whether persistence mode is off")
            continue
        _nobody_there(target)
        match MEANS[name](target):
            case Done():
                return
            case InUse():
                why = "the driver knows a client that no look at the processes shows: find it, or reboot the node"
                raise NotNowError(f"cannot reset: {name}: {why}")
            case Stuck(why):
                raise _StillAtItError(f"cannot reset: {name}: {why}: reboot the node")
            case NoPermission():
                refusals.append(f"{name}: it takes root and CAP_SYS_ADMIN")
            case Unsupported(why) | Failed(why):
                refusals.append(f"{name}: {why}")
    raise DeviceError(f"cannot reset: {'; '.join(refusals)}")


def _divide(target: Target, layout: slices.Layout) -> None:
    if not layout:
        return
    try:
        with target.library.session() as session:
            slices.lay_out(session, target.uuid, layout)
    except DeviceError as error:
        raise DeviceError(f"cannot reset: its slices did not come back: {error}") from error


def _nobody_there(target: Target) -> None:
    """Not even the persistence daemon, which needs a moment to leave."""
    until = time.monotonic() + target.patience.leaving
    while fault := conditions.in_the_way(target.users()):
        if time.monotonic() >= until:
            raise NotNowError(f"cannot reset: {fault}")
        time.sleep(_BLINK)
