"""Restores the settings of a device, so that a pod never gets settings that an earlier pod changed.

A setting is restored to the driver's default. Persistence, ECC and MIG have no default, only a choice of the operator:
they are restored to the values that the device was first seen with. A pod may have changed those before the first
observation.

ECC and MIG mode change only at a reset. They are set before the reset, so that it does not put the choice of a pod into
force. A device fails if another ECC mode is in force than the one that is to be restored.

Locked clocks cannot be read, so the drift is unknown: each time they are unlocked, with no report. The MIG mode in
force and the slice layout are never changed here, because that replaces devices, which is for operators. Only a change
of MIG mode that waits for a reset is reverted. Everything else is reported and left.

A setting that the policy leaves (``settings.leave``) is neither changed nor judged.

A setting that the device does not support cannot have drifted. One that is refused for another reason is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from scrubber.core.measured import Restored
from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError, ShortageError
from scrubber.devices.nvidia import slices
from scrubber.devices.nvidia.nvml import NoPermissionError, NotSupportedError, ResetRequiredError, Session
from scrubber.devices.nvidia.settings import (
    COMPUTE_MODE,
    DEFAULT_MODE,
    KNOBS,
    LOCKED_CLOCKS,
    LOCKS,
    MIG,
    PROHIBITED,
    Knob,
    StoredSettings,
    on_or_off,
)

Act = Callable[[], Iterable[str]]


def forbids_cuda(session: Session, uuid: str) -> bool:
    """Whether the compute mode is prohibited: then no CUDA program can open the device."""
    return bool(COMPUTE_MODE.read(session, session.handle(uuid)) == PROHIBITED)


def allow_cuda(session: Session, uuid: str, left: Collection[str]) -> tuple[str, ...]:
    """Change a prohibited compute mode to default, and return the change. DeviceError if the mode stays.

    ``left``: the settings that the policy leaves as they are.
    """
    refused, remedy = f"cannot open {uuid}: its compute mode is prohibited", f"nvidia-smi -i {uuid} -c DEFAULT"
    if COMPUTE_MODE.name in left:
        raise NotNowError(f"{refused}, and the policy leaves it (settings.leave); change it on the node: {remedy}")
    try:
        Restorer(session, uuid, StoredSettings(), left).write(COMPUTE_MODE, DEFAULT_MODE)
    except (DeviceLostError, ShortageError):
        raise
    except DeviceError as error:
        kind = NotNowError if isinstance(error, NoPermissionError) else DeviceError
        raise kind(f"{refused} and cannot be changed: {_why(error)}; set it on the node: {remedy}") from error
    return (f"{COMPUTE_MODE.name}: {PROHIBITED} -> {DEFAULT_MODE}",)


class Restorer:
    """Restores the settings of one whole GPU, within one session."""

    def __init__(self, session: Session, uuid: str, first: StoredSettings, left: Collection[str]) -> None:
        """``first``: the settings that the GPU was first seen with. ``left``: those that stay as they are."""
        self._session = session
        self._uuid = uuid
        self._device = session.handle(uuid)
        self._first = first
        self._left = left

    def before_reset(self) -> None:
        """Set what the reset puts into force. A device that answers nothing until its reset is left."""
        try:
            for knob in (knob for knob in KNOBS if knob.in_force is not None):
                now, value = self._read(knob), self._wanted(knob)
                if None not in (now, value) and now != value:
                    with suppress(NotSupportedError):  # the step settings decides what that means
                        self.write(knob, value)
            in_force = self._in_force(MIG)
            if in_force is not None and in_force == self._first.mig != self._read(MIG):
                self.write(MIG, in_force)
        except ResetRequiredError:
            return

    def restore(self) -> Restored:
        """Restore what has drifted. Return the changes.

        DeviceError if a setting stays; NotNowError if only rights are missing, which is not a fault of the device.
        """
        changes: list[str] = []
        faults: list[str] = []
        forbidden = 0
        for name, act in self._acts():
            try:
                changes += act()
            except (DeviceLostError, ShortageError):
                raise
            except DeviceError as error:
                faults.append(f"{name}: {_why(error)}")
                forbidden += isinstance(error, NoPermissionError)
        if faults:
            kind = NotNowError if forbidden == len(faults) else DeviceError
            raise kind(f"cannot restore settings: {'; '.join(faults)}")
        return Restored(tuple(changes))

    def shared(self) -> tuple[str, ...]:
        """Report the drift of a slice's GPU. Other slices of it may be in use, so nothing is restored.

        DeviceError if only a reset can restore a setting.
        """
        try:
            for knob in KNOBS:
                self._demand_in_force(knob, self._wanted(knob))
        except DeviceLostError:
            raise
        except DeviceError as error:
            raise DeviceError(f"cannot restore settings: {error}") from error
        seen = ((knob, self._read(knob), self._wanted(knob)) for knob in KNOBS)
        return tuple(
            f"{knob.name}: {knob.word(now)}, expected {knob.word(value)} (left: the whole GPU shares it)"
            for knob, now, value in seen
            if None not in (now, value) and now != value
        )

    def write(self, knob: Knob, value: Any) -> None:  # noqa: ANN401 - a knob's
        """Set a value, and read it again. DeviceError if the old value stays."""
        knob.write(self._session, self._device, value)
        after = self._read(knob)
        if after != value:
            reads = "cannot be read any more" if after is None else f"reads {knob.word(after)}"
            raise DeviceError(f"it was set to {knob.word(value)} and {reads}")

    def _acts(self) -> Iterable[tuple[str, Act]]:
        """Each setting: its name, and how to restore it."""
        for knob in KNOBS:
            yield knob.name, partial(self._restore, knob)
        for name, unlock in LOCKS if LOCKED_CLOCKS not in self._left else ():
            yield f"{LOCKED_CLOCKS}.{name}", partial(self._unlock, unlock)
        yield MIG.name, self._check_mig

    def _read(self, knob: Knob) -> Any:  # noqa: ANN401 - a knob's
        return knob.read(self._session, self._device)

    def _wanted(self, knob: Knob) -> Any:  # noqa: ANN401 - a knob's
        """The value to restore: the driver's default, else the first seen. None: it is left."""
        if knob.name in self._left:
            return None
        default = knob.default(self._session, self._device)
        return getattr(self._first, knob.name) if default is None else default

    def _restore(self, knob: Knob) -> Iterable[str]:
        value, now = self._wanted(knob), self._read(knob)
        if now is None or value is None:
            return ()
        if now != value:
            self.write(knob, value)
        self._demand_in_force(knob, value)
        return () if value == now else (f"{knob.name}: {knob.word(now)} -> {knob.word(value)}",)

    def _unlock(self, unlock: Callable[..., Any]) -> Iterable[str]:
        """Unlock clocks, whatever they are. A device that does not support locks has none to remove."""
        self._session.ask_optional(unlock, self._device)
        return ()

    def _in_force(self, knob: Knob) -> Any | None:  # noqa: ANN401 - a knob's
        """The value in force of a setting that changes at a reset; None for other settings, or if not supported."""
        return None if knob.in_force is None else knob.in_force(self._session, self._device)

    def _demand_in_force(self, knob: Knob, value: Any) -> None:  # noqa: ANN401 - a knob's
        """DeviceError if the value in force is wrong: only a reset puts the pending value into force."""
        now = self._in_force(knob)
        if None not in (now, value) and now != value:
            raise DeviceError(
                f"{knob.name} is {knob.word(now)} in force and must be {knob.word(value)}: only a reset changes it"
            )

    def _check_mig(self) -> Iterable[str]:
        """Compare MIG mode and layout with the first seen ones, and report the difference."""
        in_force, first = self._in_force(MIG), self._first
        if None in (in_force, first.mig):
            return ()
        if in_force != first.mig:
            left = f"{on_or_off(in_force)}, first seen {on_or_off(first.mig)} (left: operators divide GPUs)"
            return (f"{MIG.name}: {left}",)
        changes = [*self._restore(MIG)]  # takes back a change that waits for a reset
        layout = slices.describe(slices.layout(self._session, self._uuid))
        if first.layout not in (None, layout):
            old, new = (", ".join(names) or "none" for names in (first.layout or (), layout))
            changes.append(f"slices: {new}, first seen {old} (left: operators divide GPUs)")
        return changes


def _why(error: DeviceError) -> str:
    return "root is needed: run the service as root" if isinstance(error, NoPermissionError) else str(error)
