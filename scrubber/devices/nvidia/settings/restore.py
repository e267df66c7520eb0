"""Restores the settings of a device, so that a pod never gets settings that an earlier pod changed.

A setting is restored to the value in the policy; without one, to the driver's default. Persistence, ECC and MIG have no
default, only a choice of the operator: they are restored to the values that the device was first seen with. A pod may
have changed those before the first observation, so a policy that names a value always wins.

ECC and MIG mode change only at a reset. They are set before the reset, so that it does not put the choice of a pod into
force. A device fails if another ECC mode is in force than the one that is to be restored.

Locked clocks cannot be read, so the drift is unknown: each time they are locked as the policy says, or unlocked, with
no report. A lock that the device does not support is reported, and is no error. The MIG mode in force and the slice
layout are never changed here, because that replaces devices, which is for operators. Only a change of MIG mode that
waits for a reset is reverted. Everything else is reported and left. A setting that the device does not support cannot
have drifted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pynvml

from scrubber.core.model import Findings
from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError, ShortageError
from scrubber.devices.nvidia.inventory import slices
from scrubber.devices.nvidia.nvml import Handle, ResetRequiredError, Session
from scrubber.devices.nvidia.settings.knobs import KNOBS, MIG, NO_LOCKS, ClockLocks, Knob, lock_clocks, on_or_off
from scrubber.devices.nvidia.settings.settings import StoredSettings


def before_reset(session: Session, uuid: str, first: StoredSettings, policy: StoredSettings) -> None:
    """Set what the reset puts into force. A device that answers nothing until its reset is left."""
    device = session.handle(uuid)
    try:
        for knob in (knob for knob in KNOBS if knob.in_force is not None):
            now, value = knob.read(session, device), _target(session, device, knob, first, policy)
            if None not in (now, value) and now != value:
                _write(session, device, knob, value)
        in_force, pending = _in_force(MIG, session, device), MIG.read(session, device)
        if in_force is not None and in_force == first.mig != pending:
            _write(session, device, MIG, in_force)
    except ResetRequiredError:
        return


def restore(
    session: Session, uuid: str, first: StoredSettings, policy: StoredSettings, locks: ClockLocks = NO_LOCKS
) -> Findings:
    """Restore what has drifted, and return the changes, and the locks that the device does not support.

    DeviceError if a setting does not take; NotNowError if only rights are missing, which is no fault of the device.
    """
    device = session.handle(uuid)
    actions: list[tuple[str, Callable[[], Iterable[str]]]] = [
        (knob.name, partial(_restored, session, device, knob, first, policy)) for knob in KNOBS
    ]
    unsupported: list[str] = []

    def lock() -> Iterable[str]:
        unsupported.extend(lock_clocks(session, device, locks))
        return ()

    actions.append(("locked clocks", lock))
    actions.append((MIG.name, partial(_check_mig, session, uuid, first)))
    changes: list[str] = []
    faults: list[str] = []
    forbidden = 0
    for name, action in actions:
        try:
            changes += action()
        except (DeviceLostError, ShortageError):
            raise
        except DeviceError as error:
            faults.append(f"{name}: {_why(error)}")
            forbidden += _is_forbidden(error)
    if faults:
        kind = NotNowError if forbidden == len(faults) else DeviceError
        raise kind(f"cannot restore settings: {'; '.join(faults)}")
    return Findings(drift=tuple(changes), unsupported=tuple(unsupported))


def shared(session: Session, uuid: str, first: StoredSettings, policy: StoredSettings) -> tuple[str, ...]:
    """The drift of a GPU of which this worker scrubs one slice: reported and left, because other slices may be in use.

    DeviceError if only a reset can restore a setting.
    """
    device = session.handle(uuid)
    try:
        for knob in KNOBS:
            _must_be_in_force(session, device, knob, _target(session, device, knob, first, policy))
    except DeviceLostError:
        raise
    except DeviceError as error:
        raise DeviceError(f"cannot restore settings: {error}") from error
    seen = ((knob, knob.read(session, device), _target(session, device, knob, first, policy)) for knob in KNOBS)
    return tuple(
        f"{knob.name}: {knob.word(now)}, baseline {knob.word(value)} (left: the whole GPU shares it)"
        for knob, now, value in seen
        if None not in (now, value) and now != value
    )


def _target(session: Session, device: Handle, knob: Knob, first: StoredSettings, policy: StoredSettings) -> Any:  # noqa: ANN401 - a knob's
    """The value to restore: of the policy, else the driver's default, else the first seen."""
    candidates = (getattr(policy, knob.name), knob.default(session, device), getattr(first, knob.name))
    return next((value for value in candidates if value is not None), None)


def _restored(
    session: Session, device: Handle, knob: Knob, first: StoredSettings, policy: StoredSettings
) -> Iterable[str]:
    value = _target(session, device, knob, first, policy)
    now = knob.read(session, device)
    if now is None and getattr(policy, knob.name) is not None:
        raise DeviceError(f"the policy names {knob.word(value)}, and this device does not support it")
    if now is None or value is None:
        return ()
    if now != value:
        _write(session, device, knob, value)
    _must_be_in_force(session, device, knob, value)
    return () if value == now else (f"{knob.name}: {knob.word(now)} -> {knob.word(value)}",)


def _in_force(knob: Knob, session: Session, device: Handle) -> Any | None:  # noqa: ANN401 - a knob's
    """The value in force of a setting that changes at a reset; None for other settings, or if not supported."""
    return None if knob.in_force is None else knob.in_force(session, device)


def _must_be_in_force(session: Session, device: Handle, knob: Knob, value: Any) -> None:  # noqa: ANN401 - same
    """DeviceError if the value in force is wrong: only a reset puts the pending value into force."""
    now = _in_force(knob, session, device)
    if None in (now, value) or now == value:
        return
    raise DeviceError(
        f"{knob.name} is {knob.word(now)} in force and must be {knob.word(value)}: only a reset changes it"
    )


def _write(session: Session, device: Handle, knob: Knob, value: Any) -> None:  # noqa: ANN401 - same
    knob.write(session, device, value)
    after = knob.read(session, device)
    if after != value:
        reads = "cannot be read any more" if after is None else f"reads {knob.word(after)}"
        raise DeviceError(f"it was set to {knob.word(value)} and {reads}")


def _check_mig(session: Session, uuid: str, first: StoredSettings) -> Iterable[str]:
    """Compare MIG mode and layout with the first seen ones; reports the difference."""
    device = session.handle(uuid)
    in_force = _in_force(MIG, session, device)
    if None in (in_force, first.mig):
        return ()
    if in_force != first.mig:
        return (f"{MIG.name}: {on_or_off(in_force)}, first seen {on_or_off(first.mig)} (left: operators divide GPUs)",)
    changes = tuple(_restored(session, device, MIG, first, StoredSettings()))
    layout = slices.describe(slices.layout(session, uuid))
    if first.layout in (None, layout):
        return changes
    old, new = (", ".join(names) or "none" for names in (first.layout, layout))
    return (*changes, f"slices: {new}, first seen {old} (left: operators divide GPUs)")


def _why(error: DeviceError) -> str:
    return "root is needed: run the service as root" if _is_forbidden(error) else str(error)


def _is_forbidden(error: DeviceError) -> bool:
    cause = error.__cause__
    return isinstance(cause, pynvml.NVMLError) and cause.value == pynvml.NVML_ERROR_NO_PERMISSION
