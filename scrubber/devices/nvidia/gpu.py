"""Touch: what a worker child does to one NVIDIA GPU or one slice of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scrubber.core.model import Holder, Vitals
from scrubber.devices.base import Cleared, DeviceError, DeviceLostError, NotNowError, Progress, Users, Verified
from scrubber.devices.nvidia import conditions, reset, restoring, settings, slices, users, vitals
from scrubber.devices.nvidia.conditions import Target
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.library import Library, Session
from scrubber.devices.nvidia.settings import Settings
from scrubber.devices.nvidia.users import Usage

MEANS = (reset.TOOL,)
WAIT, RECREATE = "wait", "recreate"  # what the reset of a slice is: that of its GPU, or the slice made anew


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device is and what is to be done with it there, as ``Address.place`` says it in JSON."""

    uuid: str
    root: str
    pci_address: str
    minor: int
    parent: str | None  # of a slice
    baseline: str | None = None  # the file of the settings that the whole GPU was first seen with
    means: tuple[str, ...] = MEANS  # of a reset, in order, as policies name them
    slices: str = WAIT
    idle_bytes: int | None = None  # in use while nobody is on it; None takes what is believed of any GPU
    wanted: Mapping[str, Any] = field(default_factory=dict)  # settings that a policy names; see ``settings.Settings``

    @property
    def gpu(self) -> str:
        """The whole GPU: of a slice, the one that it is a part of."""
        return self.parent or self.uuid


def placed(text: str) -> Place:
    """Read strictly."""
    try:
        said = json.loads(text)
        place = Place(**said | {"means": tuple(said.get("means", MEANS)), "wanted": dict(said.get("wanted", {}))})
    except (TypeError, ValueError, AttributeError) as error:
        raise DeviceError(f"cannot open a GPU: its place is not understood: {error}") from error
    if unknown := [name for name in place.means if name not in reset.MEANS]:
        raise DeviceError(f"cannot open {place.uuid}: no means of a reset is called {unknown[0]!r}")
    if place.slices not in (WAIT, RECREATE):
        raise DeviceError(f"cannot open {place.uuid}: slices are not reset by {place.slices!r}")
    return place


def _beyond(idle: int) -> Callable[[Usage], int]:
    return lambda usage: users.leaked(usage, idle)


def nobody_can_tell() -> tuple[Holder, ...] | None:
    """Who uses a device, while nobody looks: then it is not reset."""
    return None


class NvidiaGpu:
    """One device behind NVML."""

    def __init__(self, place: str, reached: Users = nobody_can_tell, library: Library | None = None) -> None:
        """Ask nothing yet.

        ``reached`` names whoever has open what a reset takes down: the whole GPU and all that are reset with it; for a
        slice that is made anew, that slice alone. Bystanders and the service are users as well.
        """
        self._place = placed(place)
        self._wanted = settings.named(self._place.wanted)
        self._reached = reached
        self._library = library or Library()

    def reset(self) -> None:
        """The GPU's reset; or, where the policy says so, the slice is destroyed and made anew."""
        if self._place.parent is not None and self._place.slices == RECREATE:
            self._recreate(self._place.parent)
            return
        with self._library.session() as session:
            self._first(session)  # a reset that is cut off leaves behind what it has set
        reset.reset(self._target())
        if self._place.parent is not None:
            self._look_for_the_slice(self._place.parent)

    def clear(self, key: bytes, patterns: Iterable[str], progress: Progress) -> Cleared:  # noqa: ARG002 - the port's
        """Not in this version."""
        raise DeviceError("cannot clear: this version has no CUDA worker yet")

    def verify(self, progress: Progress) -> Verified:  # noqa: ARG002 - the port's
        """Not in this version."""
        raise DeviceError("cannot verify: this version has no CUDA worker yet")

    def restore_settings(self) -> tuple[str, ...]:
        """Bring them back, and say what had drifted. Those of a slice are its whole GPU's: told and left.

        Whoever scrubs one slice must not change what runs on another. They come back when the GPU is reset, which is
        done with nobody on it.
        """
        with self._library.session() as session:
            restore = restoring.restore if self._place.parent is None else restoring.shared
            return restore(session, self._place.gpu, self._first(session), self._wanted)

    def vitals(self) -> Vitals:
        """Health as the driver tells it now."""
        idle = self._place.idle_bytes
        with self._library.session() as session:
            return vitals.of(
                session,
                self._place.uuid,
                Host(Path(self._place.root)).runs,
                users.leaked if idle is None else _beyond(idle),
            )

    def _first(self, session: Session) -> Settings:
        """As the whole GPU was set when it was first seen."""
        path = self._place.baseline
        return Settings() if path is None else settings.baseline(Path(path), session, self._place.gpu)

    def _target(self) -> Target:
        place = self._place
        host = Host(Path(place.root))
        return Target(place.gpu, place.pci_address, host, place.means, self._reached, self._library)

    def _look_for_the_slice(self, parent: str) -> None:
        """One whose GPU told nothing before its reset is not laid out again by us."""
        with self._library.session() as session:
            if self._place.uuid in slices.uuids(slices.layout(session, parent)):
                return
        why = f"it did not come back with its GPU: lay the slices of {parent} out again"
        raise DeviceLostError(f"cannot reset {self._place.uuid}: {why}")

    def _recreate(self, parent: str) -> None:
        target = self._target()
        faults = (conditions.rights(target), conditions.in_the_way(self._reached()))
        if told := [fault for fault in faults if fault is not None]:
            raise NotNowError(f"cannot reset {self._place.uuid}: {'; '.join(told)}")
        with self._library.session() as session:
            slices.recreate(session, parent, self._place.uuid)
