"""Looks for signs once in a while, and remembers what makes them: how a GPU was, since when, and how often.

A sign must last: what is gone at the next look was no illness. Each is read apart from the others. One that cannot be
read stands as it was told last, so that nothing is healed by an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.base import DeviceError, DeviceLostError, DriverClosedError
from scrubber.devices.nvidia.health.signs import fabric, heat, nvlinks, pcie, sram
from scrubber.devices.nvidia.health.signs.best_seen import Best, BestSeenFile
from scrubber.devices.nvidia.nvml import (
    DriverGoneError,
    ForbiddenError,
    Handle,
    ResetRequiredError,
    Session,
    VersionSkewError,
)
from scrubber.ground import log

logger = log.get("signs")

EVERY = 10.0  # seconds: they ask some thirty questions of each GPU, and none of them is about who gets it next
# Seconds from the look that finds it first to the one that tells it. A fabric manager that is started anew and a peak
# of load are over sooner; links are trained within seconds.
LASTS = {
    AilmentKind.LINKS: 10.0,
    AilmentKind.PCIE: 10.0,
    AilmentKind.FABRIC: 30.0,
    AilmentKind.HEAT: 30.0,
    AilmentKind.SRAM: 0.0,
}
# Errors that say more than a sign.
_OF_ALL = (DeviceLostError, DriverClosedError, DriverGoneError, ResetRequiredError, VersionSkewError)


@dataclass(slots=True)
class _KnownSigns:
    """What is known of one GPU."""

    opening: int = -1  # of NVML, at the last look
    looked: float = float("-inf")
    found: dict[AilmentKind, Sign | None] = field(default_factory=dict)
    since: dict[AilmentKind, float] = field(default_factory=dict)
    replays: tuple[tuple[float, int], ...] = ()
    turn: threading.Lock = field(default_factory=threading.Lock)  # its slices are asked about at the same time

    def lasts(self, kind: AilmentKind) -> bool:
        """By the look that was taken last: nothing begins to last between two looks."""
        return self.looked - self.since.get(kind, self.looked) >= LASTS[kind]


@dataclass(frozen=True, slots=True)
class _SignLook:
    """One look at a GPU."""

    nvml: Session
    uuid: str
    gpu: Handle
    known: _KnownSigns
    now: float


class SignWatch:
    """The signs of every GPU."""

    def __init__(self, keeper: BestSeenFile, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was looked at yet."""
        self._keeper = keeper
        self._clock = clock
        self._known: dict[str, _KnownSigns] = {}
        self._told: set[tuple[str, AilmentKind]] = set()

    def links(self, uuid: str) -> frozenset[int]:
        """The NVLinks of a GPU that were ever up since the node was started. Asks nobody."""
        return self._keeper.of(uuid).links

    def look(self, nvml: Session, uuid: str, gpu: Handle, *, whole: bool) -> tuple[Sign, ...]:
        """The signs of a GPU that last. One that is sliced uses neither links nor fabric."""
        known = self._known.setdefault(uuid, _KnownSigns())
        with known.turn:
            self._look(_SignLook(nvml, uuid, gpu, known, self._clock()), whole=whole)
            unused = () if whole else (AilmentKind.LINKS, AilmentKind.FABRIC)
            lasting = (sign for sign in known.found.values() if sign is not None and known.lasts(sign.kind))
            return tuple(sign for sign in lasting if sign.kind not in unused)

    def _look(self, look: _SignLook, *, whole: bool) -> None:
        known, opening = look.known, look.nvml.opening
        if known.opening != opening:  # perhaps for a reset, after which links are being trained
            known.since.pop(AilmentKind.LINKS, None)
        if known.opening != opening or look.now - known.looked >= EVERY:
            self._read(look, whole=whole)
            known.opening, known.looked = opening, look.now

    def _read(self, look: _SignLook, *, whole: bool) -> None:
        readers = {AilmentKind.HEAT: _heat, AilmentKind.PCIE: self._pcie, AilmentKind.SRAM: _sram}
        if whole:
            readers |= {AilmentKind.LINKS: self._links, AilmentKind.FABRIC: self._fabric}
        for kind, reader in readers.items():
            self._note(look, kind, reader)

    def _note(self, look: _SignLook, kind: AilmentKind, reader: Callable[[_SignLook], Sign | None]) -> None:
        known = look.known
        try:
            known.found[kind] = reader(look)
        except _OF_ALL:
            raise
        except ForbiddenError:
            known.found.setdefault(kind, None)  # nobody may tell whether it has ended
        except DeviceError as error:
            if (look.uuid, kind) not in self._told:
                self._told.add((look.uuid, kind))
                logger.warning("cannot look for a sign", gpu=look.uuid, sign=kind.value, error=str(error))
        if known.found.get(kind) is None:
            known.since.pop(kind, None)
        else:
            known.since.setdefault(kind, look.now)

    def _pcie(self, look: _SignLook) -> Sign | None:
        known, reading = look.known, pcie.read(look.nvml, look.gpu)
        counted = () if reading.replays is None else ((look.now, reading.replays),)
        known.replays = (*(each for each in known.replays if look.now - each[0] <= pcie.WINDOW), *counted)
        best = self._keeper.learn(look.uuid, Best(lanes=reading.lanes or 0))
        return pcie.judge(reading, best.lanes, pcie.lately(known.replays))

    def _links(self, look: _SignLook) -> Sign | None:
        up = nvlinks.read(look.nvml, look.gpu)
        return nvlinks.judge(self._keeper.learn(look.uuid, Best(links=up)).links, up)

    def _fabric(self, look: _SignLook) -> Sign | None:
        reading = fabric.read(look.nvml, look.gpu)
        best = self._keeper.learn(look.uuid, Best(joined=reading.joined))
        return fabric.judge(reading, joined_before=best.joined)


def _heat(look: _SignLook) -> Sign | None:
    return heat.judge(heat.read(look.nvml, look.gpu))


def _sram(look: _SignLook) -> Sign | None:
    return sram.judge(sram.read(look.nvml, look.gpu))
