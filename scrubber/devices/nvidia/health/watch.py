"""Reads the signs of each GPU periodically, and remembers since when each sign is present.

A sign must last: a sign that is gone at the next reading is not reported. Each sign is read separately. If a sign
cannot be read, its last value stays, so that an error never ends a sign.

The best values of each GPU since the node booted are stored on disk, so that a restarted service does not take a broken
GPU for a normal one. A lower value than the best one means a fault.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices import shortage
from scrubber.devices.base import DeviceError, DeviceLostError, DriverClosedError
from scrubber.devices.nvidia.health import vitals
from scrubber.devices.nvidia.nvml import (
    DriverGoneError,
    Handle,
    NoPermissionError,
    ResetRequiredError,
    Session,
    VersionSkewError,
)
from scrubber.ground import log, private_files
from scrubber.ground.documents import strict_json

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


@dataclass(frozen=True, slots=True)
class Best:
    """The best link speed and width that were seen on a GPU."""

    links: frozenset[int] = frozenset()  # NVLinks that were up
    lanes: int = 0  # of the PCIe link
    joined: bool = False  # a fabric

    def with_(self, other: Best) -> Best:
        """The better of both in each value."""
        return Best(self.links | other.links, max(self.lanes, other.lanes), self.joined or other.joined)


@dataclass(frozen=True, slots=True)
class _Stored:
    """The document of one GPU."""

    boot: str
    seen: Best


class BestSeenFile:
    """The best values of every GPU, in one file per GPU."""

    def __init__(self, folder: Path, boot_id: Callable[[], str]) -> None:
        """``boot_id`` returns the ID of this boot; values of another boot are ignored."""
        self._folder = folder
        self._boot_id = boot_id
        self._known: dict[str, Best] = {}

    def of(self, gpu: str) -> Best:
        """The best link speed and width that were seen on a GPU."""
        if gpu not in self._known:
            self._known[gpu] = self._kept(gpu)
        return self._known[gpu]

    def learn(self, gpu: str, seen: Best) -> Best:
        """Update the best values with a reading, and return them."""
        before = self.of(gpu)
        best = before.with_(seen)
        if best != before:
            self._known[gpu] = best
            self._keep(gpu, best)
        return best

    def _file(self, gpu: str) -> Path:
        return self._folder / f"{gpu}.json"

    def _kept(self, gpu: str) -> Best:
        try:
            stored = strict_json.decode(_Stored, private_files.content(self._file(gpu)))
            return stored.seen if stored.boot == self._boot_id() else Best()
        except (FileNotFoundError, NotADirectoryError):
            return Best()
        except (OSError, ValueError) as error:
            shortage.demand_none(error)  # the file is well: without its values a fault would not show
            logger.warning("cannot read the best values of a GPU: its values now count", gpu=gpu, error=str(error))
            return Best()

    def _keep(self, gpu: str, best: Best) -> None:
        try:
            with private_files.beside(self._file(gpu), strict_json.encode(_Stored(self._boot_id(), best))) as aside:
                aside.replace(self._file(gpu))
        except OSError as error:
            logger.warning("cannot store the best values of a GPU: a restart forgets them", gpu=gpu, error=str(error))


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
            AilmentKind.HEAT: lambda scan: vitals.heat(scan.nvml, scan.gpu),
            AilmentKind.PCIE: self._pcie,
            AilmentKind.SRAM: lambda scan: vitals.sram(scan.nvml, scan.gpu),
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
        known, (lanes, replays) = scan.known, vitals.read_pcie(scan.nvml, scan.gpu)
        counted = () if replays is None else ((scan.now, replays),)
        known.replays = (*(each for each in known.replays if scan.now - each[0] <= vitals.REPLAY_WINDOW), *counted)
        best = self._keeper.learn(scan.uuid, Best(lanes=lanes or 0))
        return vitals.judge_pcie(lanes, best.lanes, vitals.growth(known.replays))

    def _links(self, scan: _Scan) -> Sign | None:
        up = vitals.links_up(scan.nvml, scan.gpu)
        return vitals.links_down(self._keeper.learn(scan.uuid, Best(links=up)).links, up)

    def _fabric(self, scan: _Scan) -> Sign | None:
        reading = vitals.read_fabric(scan.nvml, scan.gpu)
        best = self._keeper.learn(scan.uuid, Best(joined=reading.joined))
        return vitals.judge_fabric(reading, joined_before=best.joined)
