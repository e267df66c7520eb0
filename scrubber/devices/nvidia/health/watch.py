"""Reads the signs of each GPU periodically, and remembers since when each sign is present.

A sign must last: a sign that is gone at the next reading is not reported. Each sign is read separately. If a sign
cannot be read, its last value stays, so that an error never ends a sign.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.base import DeviceError, DeviceLostError, DriverClosedError
from scrubber.devices.nvidia.health import signs
from scrubber.devices.nvidia.health.best_seen import Best, BestSeenFile
from scrubber.devices.nvidia.nvml import (
    DriverGoneError,
    Handle,
    NoPermissionError,
    ResetRequiredError,
    Session,
    VersionSkewError,
)
from scrubber.ground import log

logger = log.get("signs")

EVERY = 10.0  # seconds: a reading makes about thirty calls for each GPU, and no job waits for it
# Seconds from the first reading of a sign to its report. A restart of the fabric manager or a peak of load ends sooner;
# links are trained within seconds.
LASTS = {
    AilmentKind.LINKS: 10.0,
    AilmentKind.PCIE: 10.0,
    AilmentKind.FABRIC: 30.0,
    AilmentKind.HEAT: 30.0,
    AilmentKind.SRAM: 0.0,
}
# Errors that concern all signs.
_FATAL = (DeviceLostError, DriverClosedError, DriverGoneError, ResetRequiredError, VersionSkewError)


@dataclass(slots=True)
class _KnownSigns:
    """The readings of one GPU."""

    opening: int = -1  # of NVML, at the last reading
    read_at: float = float("-inf")
    found: dict[AilmentKind, Sign | None] = field(default_factory=dict)
    since: dict[AilmentKind, float] = field(default_factory=dict)
    replays: tuple[tuple[float, int], ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)  # its slices are read at the same time

    def lasts(self, kind: AilmentKind) -> bool:
        """Whether the sign lasts, as of the last reading."""
        return self.read_at - self.since.get(kind, self.read_at) >= LASTS[kind]


@dataclass(frozen=True, slots=True)
class _Scan:
    """What a reader needs to read one sign of a GPU."""

    nvml: Session
    uuid: str
    gpu: Handle
    known: _KnownSigns
    now: float


class SignWatch:
    """The signs of every GPU."""

    def __init__(self, keeper: BestSeenFile, clock: Callable[[], float] = time.monotonic) -> None:
        self._keeper = keeper
        self._clock = clock
        self._known: dict[str, _KnownSigns] = {}
        self._logged: set[tuple[str, AilmentKind]] = set()

    def links(self, uuid: str) -> frozenset[int]:
        """The NVLinks of a GPU that were up since the node booted. Does not ask the driver."""
        return self._keeper.of(uuid).links

    def signs(self, nvml: Session, uuid: str, gpu: Handle, *, whole: bool) -> tuple[Sign, ...]:
        """The lasting signs of a GPU. A sliced GPU uses neither links nor fabric."""
        known = self._known.setdefault(uuid, _KnownSigns())
        with known.lock:
            self._update(_Scan(nvml, uuid, gpu, known, self._clock()), whole=whole)
            unused = () if whole else (AilmentKind.LINKS, AilmentKind.FABRIC)
            lasting = (sign for sign in known.found.values() if sign is not None and known.lasts(sign.kind))
            return tuple(sign for sign in lasting if sign.kind not in unused)

    def _update(self, scan: _Scan, *, whole: bool) -> None:
        known, opening = scan.known, scan.nvml.opening
        if known.opening != opening:  # perhaps after a reset, when links are still trained
            known.since.pop(AilmentKind.LINKS, None)
        if known.opening != opening or scan.now - known.read_at >= EVERY:
            self._read(scan, whole=whole)
            known.opening, known.read_at = opening, scan.now

    def _read(self, scan: _Scan, *, whole: bool) -> None:
        readers: dict[AilmentKind, Callable[[_Scan], Sign | None]] = {
            AilmentKind.HEAT: lambda scan: signs.heat(scan.nvml, scan.gpu),
            AilmentKind.PCIE: self._pcie,
            AilmentKind.SRAM: lambda scan: signs.sram(scan.nvml, scan.gpu),
        }
        if whole:
            readers |= {AilmentKind.LINKS: self._links, AilmentKind.FABRIC: self._fabric}
        for kind, reader in readers.items():
            self._note(scan, kind, reader)

    def _note(self, scan: _Scan, kind: AilmentKind, reader: Callable[[_Scan], Sign | None]) -> None:
        known = scan.known
        try:
            known.found[kind] = reader(scan)
        except _FATAL:
            raise
        except NoPermissionError:
            known.found.setdefault(kind, None)  # without permission nothing shows whether the sign has ended
        except DeviceError as error:
            if (scan.uuid, kind) not in self._logged:
                self._logged.add((scan.uuid, kind))
                logger.warning("cannot read a sign", gpu=scan.uuid, sign=kind.value, error=str(error))
        if known.found.get(kind) is None:
            known.since.pop(kind, None)
        else:
            known.since.setdefault(kind, scan.now)

    def _pcie(self, scan: _Scan) -> Sign | None:
        known, reading = scan.known, signs.read_pcie(scan.nvml, scan.gpu)
        counted = () if reading.replays is None else ((scan.now, reading.replays),)
        known.replays = (*(each for each in known.replays if scan.now - each[0] <= signs.REPLAY_WINDOW), *counted)
        best = self._keeper.learn(scan.uuid, Best(lanes=reading.lanes or 0))
        return signs.judge_pcie(reading, best.lanes, signs.growth(known.replays))

    def _links(self, scan: _Scan) -> Sign | None:
        up = signs.links_up(scan.nvml, scan.gpu)
        return signs.links_down(self._keeper.learn(scan.uuid, Best(links=up)).links, up)

    def _fabric(self, scan: _Scan) -> Sign | None:
        reading = signs.read_fabric(scan.nvml, scan.gpu)
        best = self._keeper.learn(scan.uuid, Best(joined=reading.joined))
        return signs.judge_fabric(reading, joined_before=best.joined)
