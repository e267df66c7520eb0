"""Reads the signs of each GPU periodically: the best links seen, and since when a sign is present.

A sign must last: a sign that is gone at the next reading is not reported. Each sign is read separately. If a sign
cannot be read, its last value stays, so that an error never ends a sign.

The best values of each GPU since the node booted are stored on disk, so that a restarted service does not take a broken
GPU for a normal one. A lower value than the best one means a fault.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ground import log, private_files
from ground.documents import strict_json
from scrubber.core.ailment_traits import AILMENTS
from scrubber.core.model import AilmentKind, Sign
from scrubber.devices import shortage
from scrubber.devices.base import DeviceError, DeviceLostError, DriverClosedError
from scrubber.devices.nvidia.health import vitals
from scrubber.devices.nvidia.nvml import DriverGoneError, Handle, NoPermissionError, ResetRequiredError, Session

logger = log.get("signs")

EVERY = 10.0  # seconds: a reading makes about thirty calls for each GPU, and no job waits for it
LASTS = {kind: traits.sign_after for kind, traits in AILMENTS.items() if traits.sign_after is not None}  # seconds
# Errors that concern all signs.
_FATAL = (DeviceLostError, DriverClosedError, DriverGoneError, ResetRequiredError)


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
            try:
                private_files.make_folder(self._folder)
                private_files.replace(self._file(gpu), strict_json.encode(_Stored(self._boot_id(), best)))
            except OSError as error:
                logger.warning(
                    "cannot store the best values of a GPU: a restart forgets them", gpu=gpu, error=str(error)
                )
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


class _GpuSigns:
    """The signs of one GPU, as of the last reading."""

    def __init__(self, uuid: str, keeper: BestSeenFile) -> None:
        self._uuid = uuid
        self._keeper = keeper
        self._lock = threading.Lock()  # its slices are read at the same time
        self._opening = -1  # of NVML, at the last reading
        self._read_at = float("-inf")
        self._found: dict[AilmentKind, Sign | None] = {}
        self._since: dict[AilmentKind, float] = {}
        self._replays: tuple[tuple[float, int], ...] = ()
        self._logged: set[AilmentKind] = set()

    def lasting(self, nvml: Session, gpu: Handle, now: float, *, whole: bool) -> tuple[Sign, ...]:
        """The signs that last. A sliced GPU shows fewer of them."""
        with self._lock:
            if self._opening != nvml.opening:  # perhaps after a reset, when links are still trained
                self._since.pop(AilmentKind.LINKS, None)
            if self._opening != nvml.opening or now - self._read_at >= EVERY:
                asking = nvml.about(self._uuid)
                readers: dict[AilmentKind, Callable[[], Sign | None]] = {
                    AilmentKind.HEAT: lambda: vitals.heat(asking, gpu),
                    AilmentKind.PCIE: lambda: self._pcie(asking, gpu, now),
                    AilmentKind.SRAM: lambda: vitals.sram(asking, gpu),
                    AilmentKind.GHOST_LOAD: lambda: vitals.ghost_load(asking, gpu),
                    AilmentKind.LINKS: lambda: self._links(nvml, gpu),  # links and fabric have a memory of their own
                    AilmentKind.FABRIC: lambda: self._fabric(nvml, gpu),
                }
                for kind, read in readers.items():
                    if whole or AILMENTS[kind].of_slices:
                        self._remember(kind, now, read)
                self._opening, self._read_at = nvml.opening, now
            signs = (sign for sign in self._found.values() if sign is not None)
            used = (sign for sign in signs if whole or AILMENTS[sign.kind].of_slices)
            read_at, since = self._read_at, self._since
            return tuple(sign for sign in used if read_at - since.get(sign.kind, read_at) >= LASTS[sign.kind])

    def _remember(self, kind: AilmentKind, now: float, read: Callable[[], Sign | None]) -> None:
        try:
            self._found[kind] = read()
        except _FATAL:
            raise
        except NoPermissionError:
            self._found.setdefault(kind, None)  # without permission nothing shows whether the sign has ended
        except DeviceError as error:
            if kind not in self._logged:
                self._logged.add(kind)
                logger.warning("cannot read a sign", gpu=self._uuid, sign=kind.value, error=str(error))
        if self._found.get(kind) is None:
            self._since.pop(kind, None)
        else:
            self._since.setdefault(kind, now)

    def _pcie(self, nvml: Session, gpu: Handle, now: float) -> Sign | None:
        lanes, replays = vitals.read_pcie(nvml, gpu)
        counted = () if replays is None else ((now, replays),)
        self._replays = (*(each for each in self._replays if now - each[0] <= vitals.REPLAY_WINDOW), *counted)
        best = self._keeper.learn(self._uuid, Best(lanes=lanes or 0))
        return vitals.judge_pcie(lanes, best.lanes, vitals.growth(self._replays))

    def _links(self, nvml: Session, gpu: Handle) -> Sign | None:
        up = vitals.links_up(nvml, gpu)
        return vitals.links_down(self._keeper.learn(self._uuid, Best(links=up)).links, up)

    def _fabric(self, nvml: Session, gpu: Handle) -> Sign | None:
        reading = vitals.read_fabric(nvml, gpu)
        best = self._keeper.learn(self._uuid, Best(joined=reading.joined))
        return vitals.judge_fabric(reading, joined_before=best.joined)


class SignWatch:
    """The signs of every GPU."""

    def __init__(self, keeper: BestSeenFile, clock: Callable[[], float] = time.monotonic) -> None:
        self._keeper = keeper
        self._clock = clock
        self._gpus: dict[str, _GpuSigns] = {}

    def links(self, uuid: str) -> frozenset[int]:
        """The NVLinks of a GPU that were up since the node booted. Does not ask the driver."""
        return self._keeper.of(uuid).links

    def signs(self, nvml: Session, uuid: str, gpu: Handle, *, whole: bool) -> tuple[Sign, ...]:
        """The lasting signs of a GPU, ``whole`` or sliced."""
        signs = self._gpus.setdefault(uuid, _GpuSigns(uuid, self._keeper))
        return signs.lasting(nvml, gpu, self._clock(), whole=whole)
