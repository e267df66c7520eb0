"""Bringing a device's settings back: what one tenant changed must not meet the next.

Where the driver knows a default, that is where a setting goes back to, unless the policy names another value: nobody
has to trust what a first look found. For persistence, ECC and MIG there is no default, only an operator's choice that
stands nowhere else: they go back to how the device was first seen. A tenant may have been there before that first look,
and what it had changed would then be the baseline; so a policy that names a value is believed before any look.

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
from scrubber.devices.nvidia import slices
from scrubber.devices.nvidia.knobs import KNOBS, MIG, Knob, on_or_off, unlock_clocks
from scrubber.devices.nvidia.library import Handle, Session
from scrubber.devices.nvidia.settings import Settings


def restore(session: Session, uuid: str, first: Settings, wanted: Settings) -> tuple[str, ...]:
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


def shared(session: Session, uuid: str, first: Settings, wanted: Settings) -> tuple[str, ...]:
    """What has drifted on a GPU of which only a slice is in hand: told and left, for others are at work on the rest."""
    device = session.handle(uuid)
    seen = ((knob, knob.read(session, device), _aim(session, device, knob, first, wanted)) for knob in KNOBS)
    return tuple(
        f"{knob.name}: {knob.word(now)}, baseline {knob.word(aim)} (left: the whole GPU shares it)"
        for knob, now, aim in seen
        if None not in (now, aim) and now != aim
    )


def _aim(session: Session, device: Handle, knob: Knob, first: Settings, wanted: Settings) -> Any:  # noqa: ANN401 - a knob's
    """Where it belongs: what the policy names, else the driver's default, else what was seen first."""
    candidates = (getattr(wanted, knob.name), knob.default(session, device), getattr(first, knob.name))
    return next((value for value in candidates if value is not None), None)


def _restored(session: Session, device: Handle, knob: Knob, first: Settings, wanted: Settings) -> Iterable[str]:
    aim = _aim(session, device, knob, first, wanted)
    now = knob.read(session, device)
    if now is None and getattr(wanted, knob.name) is not None:
        raise DeviceError(f"the policy names {knob.word(aim)}, and this device knows no such setting")
    if now is None or aim is None:
        return ()
    if now != aim:
        _turn(session, device, knob, aim)
    in_force = aim if knob.in_force is None else knob.in_force(session, device)
    if aim == now == in_force:
        return ()
    later = "" if in_force == aim else " (after the next reset)"
    return (f"{knob.name}: {knob.word(in_force if now == aim else now)} -> {knob.word(aim)}{later}",)


def _turn(session: Session, device: Handle, knob: Knob, aim: Any) -> None:  # noqa: ANN401 - same
    knob.write(session, device, aim)
    after = knob.read(session, device)
    if after != aim:
        reads = "cannot be read any more" if after is None else f"reads {knob.word(after)}"
        raise DeviceError(f"it was set to {knob.word(aim)} and {reads}")


def _divided(session: Session, uuid: str, first: Settings) -> Iterable[str]:
    """Whether the GPU is still divided as it was."""
    assert MIG.in_force is not None  # noqa: S101 - tells mypy what the table says
    device = session.handle(uuid)
    in_force = MIG.in_force(session, device)
    if None in (in_force, first.mig):
        return ()
    if in_force != first.mig:
        return (f"{MIG.name}: {on_or_off(in_force)}, first seen {on_or_off(first.mig)} (left: operators divide GPUs)",)
    told = tuple(_restored(session, device, MIG, first, Settings()))
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
