"""The reset of a whole GPU: nobody on it, one means after the other, and a look at what came back.

Every part is time-boxed (``conditions.Patience``), so that a reset that goes wrong says what went wrong; the step's own
deadline kills this process anyway, whatever hangs in the driver. Before anything is done persistence mode is switched
off: a device that the driver keeps ready must not be reset under it, and the daemon has it open. Then NVML is closed
here, and the processes are looked at once more; the service has closed its own. Persistence mode and slices come back
with the device; where this process was killed in the middle, whoever touches the GPU next brings them back
(``unfinished``). The locks are held for all of it, and for as long as the tool runs (``locks``).

The next means is tried when the one before was refused or failed, but never when the driver knows of a client that we
do not see, or when the one before is still at it. The kernel asks nobody who is on the device, the tool does: so the
kernel is asked only when all that was tried before it is known to have done nothing, and the driver counts no user.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pynvml

from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError
from scrubber.devices.nvidia.inventory import slices
from scrubber.devices.nvidia.nvml import Session
from scrubber.devices.nvidia.reset import after_reset, locks, pending_restore, preconditions, smi, sysfs
from scrubber.devices.nvidia.reset.attempt import Attempt, Done, InUse, NoPermission, ResetFailed, Stuck, Unsupported
from scrubber.devices.nvidia.reset.pending_restore import PendingRestore
from scrubber.devices.nvidia.reset.preconditions import ResetTarget

TOOL, KERNEL = "nvidia-smi", "function"  # as policies name them
Held = tuple[int, ...]  # the open files of its locks
MEANS: dict[str, Callable[[ResetTarget, Held], Attempt]] = {
    TOOL: lambda target, held: smi.reset(target.uuid, target.patience.tool, *held),
    KERNEL: lambda target, _held: sysfs.reset(target.function),
}
Deed = Callable[[Session], object]

_BLINK = 0.05


class _StillAtItError(DeviceError):
    """A reset that cannot be ended: nobody may ask the driver for this device meanwhile."""


def _nothing(_session: Session) -> None:
    """Neither before nor after it."""


def reset(target: ResetTarget, before: Deed = _nothing, after: Deed = _nothing) -> str:
    """The means that did it, when the same GPU is back, divided as it was, and wants nothing more.

    ``before`` is done when nothing stands in the way any more, ``after`` when it is back; nobody is on it either time.
    """
    with locks.claimed(*target.locks) as held:
        with target.library.session() as session:
            if faults := preconditions.unmet(session, target):
                raise NotNowError(f"cannot reset: {'; '.join(faults)}")
            joined = after_reset.joined_before_reset(session, target.uuid)
            before(session)
            mode = preconditions.answered(session, target, pynvml.nvmlDeviceGetPersistenceMode)
            owed = _written_down(session, target, kept_ready=mode == pynvml.NVML_FEATURE_ENABLED)
        try:
            means = _take_down(target, held, mode)
            after_reset.wait(target, joined=joined)
        except (DeviceLostError, _StillAtItError):
            raise  # nobody may ask for it just now: what it is owed stays written down
        except DeviceError as error:
            _give_back_after(error, target, owed)
            raise
        _give_back(target, owed)
        with target.library.session() as session:
            after(session)
        return means


def _written_down(session: Session, target: ResetTarget, *, kept_ready: bool) -> PendingRestore:
    """What it has now, and what an earlier reset still owes it: what is there now may be an operator's later choice."""
    now = PendingRestore(kept_ready, slices.layout_before_reset(session, target.uuid))
    if target.notes is None:
        return now
    owed = pending_restore.together((now, *target.notes.left().values()))
    if owed:
        target.notes.write(target.notes.file(), owed)
    return owed


def _take_down(target: ResetTarget, held: Held, mode: int | None) -> str:
    """Persistence off, NVML closed, and the reset."""
    if mode == pynvml.NVML_FEATURE_ENABLED:
        with target.library.session() as session:
            pending_restore.persist(session, target.uuid, pynvml.NVML_FEATURE_DISABLED)
    target.library.release_driver()
    try:
        return _one_after_the_other(target, held, idle=mode is not None)
    finally:
        target.library.reacquire_driver()


def _one_after_the_other(target: ResetTarget, held: Held, *, idle: bool) -> str:
    """Each means once, until one says that it is done: that one."""
    refusals: list[str] = []
    untouched = True  # so far
    for name in target.means:
        if name == KERNEL and (fault := _not_for_the_kernel(target, idle=idle, untouched=untouched)):
            refusals.append(f"{name}: {fault}")
            continue
        _nobody_there(target)
        attempt = MEANS[name](target, held)
        untouched = untouched and isinstance(attempt, Unsupported)
        match attempt:
            case Done():
                return name
            case InUse():
                why = "the driver knows a client that no look at the processes shows: find it, or reboot the node"
                raise NotNowError(f"cannot reset: {name}: {why}")
            case Stuck(why):
                raise _StillAtItError(f"cannot reset: {name}: {why}: reboot the node")
            case NoPermission():
                refusals.append(f"{name}: it takes root and CAP_SYS_ADMIN")
            case Unsupported(why) | ResetFailed(why):
                refusals.append(f"{name}: {why}")
    raise DeviceError(f"cannot reset: {'; '.join(refusals)}")


def _not_for_the_kernel(target: ResetTarget, *, idle: bool, untouched: bool) -> str | None:
    """Why the kernel must not be asked, which asks nobody."""
    if not untouched:
        return "it asks nobody who is on the device, and what was tried before it may have found somebody"
    if not idle:
        return "nobody can tell whether persistence mode is off"
    return _stays(lambda: sysfs.clients(target.host.sys_module), target.patience.leaving)


def _nobody_there(target: ResetTarget) -> None:
    """Not even the persistence daemon, which needs a moment to leave."""
    if fault := _stays(lambda: preconditions.in_the_way(target.holders()), target.patience.leaving):
        raise NotNowError(f"cannot reset: {fault}")


def _stays(look: Callable[[], str | None], within: float) -> str | None:
    """What is still in the way after that time."""
    until = time.monotonic() + within
    while (fault := look()) is not None:
        if time.monotonic() >= until:
            break
        time.sleep(_BLINK)
    return fault


def _give_back(target: ResetTarget, owed: PendingRestore) -> None:
    if not owed:
        return
    try:
        with target.library.session() as session:
            pending_restore.bring_back(session, target.uuid, owed)
    except DeviceLostError:
        raise
    except DeviceError as error:
        raise DeviceError(f"cannot reset: {error}") from error
    if target.notes is not None:
        target.notes.drop(target.notes.left())


def _give_back_after(error: DeviceError, target: ResetTarget, owed: PendingRestore) -> None:
    """The same when the reset was refused or has failed: told with it where that fails as well."""
    try:
        _give_back(target, owed)
    except DeviceError as second:
        raise DeviceError(f"{error}; {second}") from error
