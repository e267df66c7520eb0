"""What a worker child is told of the device that it is to handle."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.reset import preconditions, reset

MEANS = (reset.TOOL,)
_LISTS: Mapping[str, tuple[Any, ...]] = {"means": MEANS, "locks": (), "links": ()}
WAIT, RECREATE = "wait", "recreate"  # what the reset of a slice is: that of its GPU, or the slice made anew


@dataclass(frozen=True, slots=True)
class WorkerTarget:
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
    resets: str | None = None  # the folder of the locks of resets; without one nothing is reset
    locks: tuple[str, ...] = ()  # names of those of all that a reset takes down; none: of the GPU alone
    owed_only: bool = False  # nothing is done to it but to bring back what a reset took that was cut off
    pid_namespace: int | None = None  # the one that shows every process of the node; None is the machine's first
    reset_seconds: float = preconditions.SECONDS  # that the step has
    links: tuple[int, ...] = ()  # NVLinks of the whole GPU that were up since the node was started

    @property
    def host(self) -> Host:
        """The node."""
        host = Host(Path(self.root))
        return host if self.pid_namespace is None else replace(host, pid_namespace=self.pid_namespace)

    @property
    def gpu(self) -> str:
        """The whole GPU: of a slice, the one that it is a part of."""
        return self.parent or self.uuid


def placed(text: str) -> WorkerTarget:
    """Read strictly."""
    try:
        said = json.loads(text)
        lists = {name: tuple(said.get(name, usual)) for name, usual in _LISTS.items()}
        place = WorkerTarget(**said | lists | {"wanted": dict(said.get("wanted", {}))})
    except (TypeError, ValueError, AttributeError) as error:
        raise DeviceError(f"cannot open a GPU: its place is not understood: {error}") from error
    if unknown := [name for name in place.means if name not in reset.MEANS]:
        raise DeviceError(f"cannot open {place.uuid}: no means of a reset is called {unknown[0]!r}")
    if not _lasts(place.reset_seconds):
        raise DeviceError(f"cannot open {place.uuid}: a reset cannot take {place.reset_seconds!r} seconds")
    if place.slices not in (WAIT, RECREATE):
        raise DeviceError(f"cannot open {place.uuid}: slices are not reset by {place.slices!r}")
    return place


def _lasts(seconds: object) -> bool:
    return isinstance(seconds, int | float) and 0 < seconds < math.inf
