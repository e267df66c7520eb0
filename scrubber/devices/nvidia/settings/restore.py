"""Restores the settings of a device, so that a pod never gets settings that an earlier pod changed.

A setting is restored to the value in the policy; without one, to the driver's default. Persistence, ECC and MIG have no
default, only a choice of the operator: they are restored to the values that the device was first seen with. A pod may
have changed those before the first observation, so a policy that names a value always wins.

ECC and MIG mode change only at a reset. They are set before the reset, so that it does not put the choice of a pod into
force. A device fails if another ECC mode is in force than the one that is to be restored.

Locked clocks cannot be read, so the drift is unknown: each time they are locked as the policy says, or unlocked, with
no report. The MIG mode in force and the slice layout are never changed here, because that replaces devices, which is
for operators. Only a change of MIG mode that waits for a reset is reverted. Everything else is reported and left.

A setting that the policy leaves (``settings.leave``) is neither changed nor judged.

A setting that the device does not support cannot have drifted. A policy that names it is no fault of the device: the
setting is reported and left out. A setting that is refused for another reason is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import pynvml

from scrubber.core.model import Findings
from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError, ShortageError
from scrubber.devices.nvidia.inventory import slices
from scrubber.devices.nvidia.nvml import Handle, NotSupportedError, ResetRequiredError, Session
from scrubber.devices.nvidia.settings.knobs import (
    COMPUTE_MODE,
    DEFAULT_MODE,
    KNOBS,
    LOCKED_CLOCKS,
    LOCKS,
    MIG,
    PROHIBITED,
    Clocks,
    Knob,
    on_or_off,
)
from scrubber.devices.nvidia.settings.settings import PolicySettings, StoredSettings


def before_reset(session: Session, uuid: str, first: StoredSettings, policy: PolicySettings) -> None:
    """Set what the reset puts into force. A device that answers nothing until its reset is left."""
    device = session.handle(uuid)
    try:
        for knob in (knob for knob in KNOBS if knob.in_force is not None):
            now, value = knob.read(session, device), _target(session, device, knob, first, policy)
            if None not in (now, value) and now != value:
                with suppress(NotSupportedError):  # the step settings decides what that means
                    _write(session, device, knob, value)
        in_force, pending = _in_force(MIG, session, device), MIG.read(session, device)
        if in_force is not None and in_force == first.mig != pending:
            _write(session, device, MIG, in_force)
    except ResetRequiredError:
        return


def forbids_cuda(session: Session, uuid: str) -> bool:
    """Whether the compute mode is prohibited: then no CUDA program can open the device."""
    return bool(COMPUTE_MODE.read(session, session.handle(uuid)) == PROHIBITED)


def allow_cuda(session: Session, uuid: str, policy: PolicySettings) -> tuple[str, ...]:
    """Change a prohibited compute mode to default, and return the change. DeviceError if it does not take.

    ``restore`` runs after the steps on memory, and sets the mode that the policy names.
    """
    refused, remedy = f"cannot open {uuid}: its compute mode is prohibited", f"nvidia-smi -i {uuid} -c DEFAULT"
    if COMPUTE_MODE.name in policy.left:
        raise NotNowError(f"{refused}, and the policy leaves it (settings.leave); change it on the node: {remedy}")
    device = session.handle(uuid)
    try:
        _write(session, device, COMPUTE_MODE, DEFAULT_MODE)
    except (DeviceLostError, ShortageError):
        raise
    except DeviceError as error:
        kind = NotNowError if _is_forbidden(error) else DeviceError
        raise kind(f"{refused} and cannot be changed: {_why(error)}; set it on the node: {remedy}") from error
    return (f"{COMPUTE_MODE.name}: {PROHIBITED} -> {DEFAULT_MODE}",)


def restore(session: Session, uuid: str, first: StoredSettings, policy: PolicySettings) -> Findings:
    """Restore what has drifted. Return the changes, and what the policy names and the device does not support.

    DeviceError if a setting does not take; NotNowError if only rights are missing, which is no fault of the device.
    """
    device = session.handle(uuid)
    actions: list[tuple[str, bool, Callable[[], Iterable[str]]]] = [  # the setting, whether the policy names it
        (knob.name, getattr(policy, knob.name) is not None, partial(_restored, session, device, knob, first, policy))
        for knob in KNOBS
    ]
    for name, lock, unlock in LOCKS if LOCKED_CLOCKS not in policy.left else ():
        locked: Clocks | None = getattr(policy.locks, name)
        named, setting = locked is not None, f"{LOCKED_CLOCKS}.{name}"
        actions.append((setting, named, partial(_lock, session, device, locked, lock, unlock)))
    actions.append((MIG.name, False, partial(_check_mig, session, uuid, first)))
    changes: list[str] = []
    unsupported: list[str] = []
    faults: list[str] = []
    forbidden = 0
    for name, named, action in actions:
        try:
            changes += action()
        except (DeviceLostError, ShortageError):
            raise
        except DeviceError as error:
            if named and isinstance(error, NotSupportedError):
                unsupported.append(f"settings.{name} of the policy is not supported by this GPU")
                continue
            faults.append(f"{name}: {_why(error)}")
            forbidden += _is_forbidden(error)
    if faults:
        kind = NotNowError if forbidden == len(faults) else DeviceError
        raise kind(f"cannot restore settings: {'; '.join(faults)}")
    return Findings(drift=tuple(changes), unsupported=tuple(unsupported))


def shared(session: Session, uuid: str, first: StoredSettings, policy: PolicySettings) -> tuple[str, ...]:
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


def _target(session: Session, device: Handle, knob: Knob, first: StoredSettings, policy: PolicySettings) -> Any:  # noqa: ANN401 - a knob's
    """The value to restore: of the policy, else the driver's default, else the first seen. None: it is left."""
    if knob.name in policy.left:
        return None
    candidates = (getattr(policy, knob.name), knob.default(session, device), getattr(first, knob.name))
    return next((value for value in candidates if value is not None), None)


def _restored(
    session: Session, device: Handle, knob: Knob, first: StoredSettings, policy: PolicySettings
) -> Iterable[str]:
    value = _target(session, device, knob, first, policy)
    now = knob.read(session, device)
    if now is None and getattr(policy, knob.name) is not None:
        raise NotSupportedError(f"the device has no {knob.name}")
    if now is None or value is None:
        return ()
    if now != value:
        _write(session, device, knob, value)
    _must_be_in_force(session, device, knob, value)
    return () if value == now else (f"{knob.name}: {knob.word(now)} -> {knob.word(value)}",)


def _lock(
    session: Session, device: Handle, locked: Clocks | None, lock: Callable[..., Any], unlock: Callable[..., Any]
) -> Iterable[str]:
    """Lock or unlock clocks, whatever they are. A device that does not support locks has none to remove."""
    if locked is None:
        session.ask_optional(unlock, device)
    else:
        session.ask(lock, device, *locked)
    return ()


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
    changes = tuple(_restored(session, device, MIG, first, PolicySettings()))
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
