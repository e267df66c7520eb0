"""Bringing a device's settings back: what one tenant changed must not meet the next.

Where the driver knows a default, that is where a setting goes back to, unless the policy names another value: nobody
has to trust what a first look found. For persistence, ECC and MIG there is no default, only an operator's choice that
stands nowhere else: they go back to how the device was first seen. A tenant may have been there before that first look,
and what it had changed would then be the baseline; so a policy that names a value is believed before any look.

ECC and a change of MIG mode wait for a reset: they are set right before it, so that it does not bring into force what
a tenant left; and a device on which another ECC mode is in force than the one that belongs there fails.

Locked clocks cannot be read, so that nobody can tell whether they drifted: they are unlocked every time, in silence.
A MIG mode that is in force is never changed here, and neither is a layout: that makes other devices of a GPU, which is
for operators. Only a change of mode that still waits for a reset is taken back. All else is told and left.
What a device does not know, or does not know any more, cannot have drifted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pynvml

from scrubber.devices.base import DeviceError, DeviceLostError
from scrubber.devices.nvidia.inventory import slices
from scrubber.devices.nvidia.nvml import Handle, ResetRequiredError, Session
from scrubber.devices.nvidia.settings.knobs import KNOBS, MIG, Knob, on_or_off, unlock_clocks
from scrubber.devices.nvidia.settings.settings import StoredSettings


def before_reset(session: Session, uuid: str, first: StoredSettings, wanted: StoredSettings) -> None:
    """Set what the reset will bring into force. A device that says nothing more before it was reset is left."""
    device = session.handle(uuid)
    try:
        for knob in (knob for knob in KNOBS if knob.in_force is not None):
            now, aim = knob.read(session, device), _aim(session, device, knob, first, wanted)
            if None not in (now, aim) and now != aim:
                _turn(session, device, knob, aim)
        in_force, pending = _in_force(MIG, session, device), MIG.read(session, device)
        if in_force is not None and in_force == first.mig != pending:
            _turn(session, device, MIG, in_force)
    except ResetRequiredError:
        return


def restore(session: Session, uuid: str, first: StoredSettings, wanted: StoredSettings) -> tuple[str, ...]:
    """Set what has drifted, read it again, and say what it was. DeviceError when anything did not take."""
    device = session.handle(uuid)
    deeds: list[tuple[str, Callable[[], Iterable[str]]]] = [
        (knob.name, partial(_restored, session, device, knob, first, wanted)) for knob in KNOBS
    ]
    deeds.append(("locked clocks", lambda: unlock_clocks(session, device)))
    deeds.append((MIG.name, partial(_divided, session, uuid, first)))
    told: list[str] = []
    faults: list[str] = []
    for name, deed in deeds:
        try:
            told += deed()
        except DeviceLostError:
            raise
        except DeviceError as error:
            faults.append(f"{name}: {_why(error)}")
    if faults:
        raise DeviceError(f"cannot restore settings: {'; '.join(faults)}")
    return tuple(told)


def shared(session: Session, uuid: str, first: StoredSettings, wanted: StoredSettings) -> tuple[str, ...]:
    """What has drifted on a GPU of which only a slice is in hand: told and left, for others are at work on the rest.

    DeviceError where only a reset can set it right.
    """
    device = session.handle(uuid)
    try:
        for knob in KNOBS:
            _must_be_in_force(session, device, knob, _aim(session, device, knob, first, wanted))
    except DeviceLostError:
        raise
    except DeviceError as error:
        raise DeviceError(f"cannot restore settings: {error}") from error
    seen = ((knob, knob.read(session, device), _aim(session, device, knob, first, wanted)) for knob in KNOBS)
    return tuple(
        f"{knob.name}: {knob.word(now)}, baseline {knob.word(aim)} (left: the whole GPU shares it)"
        for knob, now, aim in seen
        if None not in (now, aim) and now != aim
    )


def _aim(session: Session, device: Handle, knob: Knob, first: StoredSettings, wanted: StoredSettings) -> Any:  # noqa: ANN401 - a knob's
    """Where it belongs: what the policy names, else the driver's default, else what was seen first."""
    candidates = (getattr(wanted, knob.name), knob.default(session, device), getattr(first, knob.name))
    return next((value for value in candidates if value is not None), None)


def _restored(
    session: Session, device: Handle, knob: Knob, first: StoredSettings, wanted: StoredSettings
) -> Iterable[str]:
    aim = _aim(session, device, knob, first, wanted)
    now = knob.read(session, device)
    if now is None and getattr(wanted, knob.name) is not None:
        raise DeviceError(f"the policy names {knob.word(aim)}, and this device knows no such setting")
    if now is None or aim is None:
        return ()
    if now != aim:
        _turn(session, device, knob, aim)
    _must_be_in_force(session, device, knob, aim)
    return () if aim == now else (f"{knob.name}: {knob.word(now)} -> {knob.word(aim)}",)


def _in_force(knob: Knob, session: Session, device: Handle) -> Any | None:  # noqa: ANN401 - a knob's
    """What counts now, where a change waits for the next reset; None where that cannot be told, or none waits."""
    return None if knob.in_force is None else knob.in_force(session, device)


def _must_be_in_force(session: Session, device: Handle, knob: Knob, aim: Any) -> None:  # noqa: ANN401 - same
    """A device that is only set right for after its next reset is not right."""
    now = _in_force(knob, session, device)
    if None in (now, aim) or now == aim:
        return
    raise DeviceError(f"{knob.name} is {knob.word(now)} in force and belongs {knob.word(aim)}: only a reset changes it")


def _turn(session: Session, device: Handle, knob: Knob, aim: Any) -> None:  # noqa: ANN401 - same
    knob.write(session, device, aim)
    after = knob.read(session, device)
    if after != aim:
        reads = "cannot be read any more" if after is None else f"reads {knob.word(after)}"
        raise DeviceError(f"it was set to {knob.word(aim)} and {reads}")


def _divided(session: Session, uuid: str, first: StoredSettings) -> Iterable[str]:
    """Whether the GPU is still divided as it was."""
    device = session.handle(uuid)
    in_force = _in_force(MIG, session, device)
    if None in (in_force, first.mig):
        return ()
    if in_force != first.mig:
        return (f"{MIG.name}: {on_or_off(in_force)}, first seen {on_or_off(first.mig)} (left: operators divide GPUs)",)
    told = tuple(_restored(session, device, MIG, first, StoredSettings()))
    layout = slices.words(slices.layout(session, uuid))
    if first.layout in (None, layout):
        return told
    old, new = (", ".join(names) or "none" for names in (first.layout, layout))
    return (*told, f"slices: {new}, first seen {old} (left: operators divide GPUs)")


def _why(error: DeviceError) -> str:
    cause = error.__cause__
    if isinstance(cause, pynvml.NVMLError) and cause.value == pynvml.NVML_ERROR_NO_PERMISSION:
        return "root is needed: run the service as root"
    return str(error)
