"""Looks for signs once in a while, and remembers what makes them: how a GPU was, since when, and how often.

A sign must last: what is gone at the next look was no illness. Each is read apart from the others. One that cannot be
read stands as it was told last, so that nothing is healed by an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from scrubber.core.model import Ailment, Sign
from scrubber.devices.base import DeviceError, DeviceLostError, DriverClosedError
from scrubber.devices.nvidia.health.signs import fabric, heat, nvlinks, pcie, sram
from scrubber.devices.nvidia.health.signs.best_seen import Best, Keeper
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
LASTS = {Ailment.LINKS: 10.0, Ailment.PCIE: 10.0, Ailment.FABRIC: 30.0, Ailment.HEAT: 30.0, Ailment.SRAM: 0.0}
# Errors that say more than a sign.
_OF_ALL = (DeviceLostError, DriverClosedError, DriverGoneError, ResetRequiredError, VersionSkewError)


@dataclass(slots=True)
class _Known:
    """What is known of one GPU."""

    opening: int = -1  # of NVML, at the last look
    looked: float = float("-inf")
    found: dict[Ailment, Sign | None] = field(default_factory=dict)
    since: dict[Ailment, float] = field(default_factory=dict)
    replays: tuple[tuple[float, int], ...] = ()
    turn: threading.Lock = field(default_factory=threading.Lock)  # its slices are asked about at the same time

    def lasts(self, ailment: Ailment) -> bool:
        """By the look that was taken last: nothing begins to last between two looks."""
        return self.looked - self.since.get(ailment, self.looked) >= LASTS[ailment]


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at a GPU."""

    nvml: Session
    uuid: str
    gpu: Handle
    known: _Known
    now: float


class Watch:
    """The signs of every GPU."""

    def __init__(self, keeper: Keeper, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was looked at yet."""
        self._keeper = keeper
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._told: set[tuple[str, Ailment]] = set()

    def links(self, uuid: str) -> frozenset[int]:
        """The NVLinks of a GPU that were ever up since the node was started. Asks nobody."""
        return self._keeper.of(uuid).links

    def look(self, nvml: Session, uuid: str, gpu: Handle, *, whole: bool) -> tuple[Sign, ...]:
        """The signs of a GPU that last. One that is sliced uses neither links nor fabric."""
        known = self._known.setdefault(uuid, _Known())
        with known.turn:
            self._look(_Look(nvml, uuid, gpu, known, self._clock()), whole=whole)
            unused = () if whole else (Ailment.LINKS, Ailment.FABRIC)
            lasting = (sign for sign in known.found.values() if sign is not None and known.lasts(sign.ailment))
            return tuple(sign for sign in lasting if sign.ailment not in unused)

    def _look(self, look: _Look, *, whole: bool) -> None:
        known, opening = look.known, look.nvml.opening
        if known.opening != opening:  # perhaps for a reset, after which links are being trained
            known.since.pop(Ailment.LINKS, None)
        if known.opening != opening or look.now - known.looked >= EVERY:
            self._read(look, whole=whole)
            known.opening, known.looked = opening, look.now

    def _read(self, look: _Look, *, whole: bool) -> None:
        readers = {Ailment.HEAT: _heat, Ailment.PCIE: self._pcie, Ailment.SRAM: _sram}
        if whole:
            readers |= {Ailment.LINKS: self._links, Ailment.FABRIC: self._fabric}
        for ailment, reader in readers.items():
            self._note(look, ailment, reader)

    def _note(self, look: _Look, ailment: Ailment, reader: Callable[[_Look], Sign | None]) -> None:
        known = look.known
        try:
            known.found[ailment] = reader(look)
        except _OF_ALL:
            raise
        except ForbiddenError:
            known.found.setdefault(ailment, None)  # nobody may tell whether it has ended
        except DeviceError as error:
            if (look.uuid, ailment) not in self._told:
                self._told.add((look.uuid, ailment))
                logger.warning("cannot look for a sign", gpu=look.uuid, sign=ailment.value, error=str(error))
        if known.found.get(ailment) is None:
            known.since.pop(ailment, None)
        else:
            known.since.setdefault(ailment, look.now)

    def _pcie(self, look: _Look) -> Sign | None:
        known, reading = look.known, pcie.read(look.nvml, look.gpu)
        counted = () if reading.replays is None else ((look.now, reading.replays),)
        known.replays = (*(each for each in known.replays if look.now - each[0] <= pcie.WINDOW), *counted)
        best = self._keeper.learn(look.uuid, Best(lanes=reading.lanes or 0))
        return pcie.judge(reading, best.lanes, pcie.lately(known.replays))

    def _links(self, look: _Look) -> Sign | None:
        up = nvlinks.read(look.nvml, look.gpu)
        return nvlinks.judge(self._keeper.learn(look.uuid, Best(links=up)).links, up)

    def _fabric(self, look: _Look) -> Sign | None:
        reading = fabric.read(look.nvml, look.gpu)
        best = self._keeper.learn(look.uuid, Best(joined=reading.joined))
        return fabric.judge(reading, joined_before=best.joined)


def _heat(look: _Look) -> Sign | None:
    return heat.judge(heat.read(look.nvml, look.gpu))


def _sram(look: _Look) -> Sign | None:
    return sram.judge(sram.read(look.nvml, look.gpu))
