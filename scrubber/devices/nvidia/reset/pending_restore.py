"""What a reset takes from a GPU and must give back, kept on disk until it is back.

Slices and persistence mode do not outlive a reset, and whoever resets a GPU may be killed in the middle. So before its
first deed it writes down what there is; whoever resets that GPU next, or restores its settings, brings that back first.
A slice that is made anew has a file of its own. What is not here needs none: the driver itself keeps ECC and MIG mode,
and all other settings go back to the baseline in any case.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from scrubber.devices.base import DeviceError, DeviceLostError
from scrubber.devices.nvidia import durable_files
from scrubber.devices.nvidia.inventory import slices
from scrubber.devices.nvidia.inventory.slices import Instance, Layout, Part
from scrubber.devices.nvidia.nvml import Session
from scrubber.devices.nvidia.settings.knobs import on_or_off

_SUFFIX = "resetting.json"


@dataclass(frozen=True, slots=True)
class PendingRestore:
    """What a GPU is to get back."""

    persistence: bool  # whether it is to be switched on
    layout: Layout

    def __bool__(self) -> bool:
        """Whether it is anything at all."""
        return self.persistence or bool(self.layout)


@dataclass(frozen=True, slots=True)
class PendingRestores:
    """The files about one GPU and its slices, in a folder for several."""

    folder: Path
    gpu: str

    def file(self, slice_: str | None = None) -> Path:
        """Of the whole GPU, or of one slice that is made anew."""
        return self.folder / ".".join(filter(None, (self.gpu, slice_, _SUFFIX)))

    def left(self) -> dict[Path, PendingRestore]:
        """What was begun and is not finished. DeviceError when a file is not what was written."""
        found = {}
        for path in sorted(self.folder.glob(f"{self.gpu}.*{_SUFFIX}")):
            try:
                found[path] = _decoded(path.read_bytes(), self.gpu)
            except FileNotFoundError:  # finished this moment
                continue
            except (OSError, ValueError, TypeError, KeyError) as error:
                why = f"{error}; set {self.gpu} right and remove the file"
                raise DeviceError(f"cannot read what a reset left behind in {path}: {why}") from error
        return found

    def write(self, path: Path, owed: PendingRestore) -> None:
        """Whole or not at all, and on the disk when this returns."""
        text = json.dumps({"uuid": self.gpu, **asdict(owed)}, indent=2).encode() + b"\n"
        try:
            with durable_files.beside(path, text) as aside:
                aside.replace(path)
            self._sync()
        except OSError as error:
            raise DeviceError(f"cannot write down what a reset is to bring back: {error}") from error

    def drop(self, paths: Iterable[Path]) -> None:
        """It is back."""
        try:
            for path in paths:
                path.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                self._sync()
        except OSError as error:
            raise DeviceError(f"cannot remove what a finished reset wrote down: {error}") from error

    def _sync(self) -> None:
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def indebted(folder: Path) -> frozenset[str]:
    """The GPUs about which there are such files."""
    return frozenset(path.name.split(".")[0] for path in folder.glob(f"[!.]*.{_SUFFIX}"))


def together(owed: Iterable[PendingRestore]) -> PendingRestore:
    """All of it; of two that cannot be there at once the first one counts."""
    every = tuple(owed)
    layout: dict[tuple[int, int], Instance] = {}
    for one in (one for those in every for one in those.layout):
        same = layout.get((one.profile, one.start))
        if same is not None:
            parts = tuple(part for part in one.parts if not _overlaps(part, same.parts))
            layout[one.profile, one.start] = replace(same, parts=same.parts + parts)
        elif not _overlaps(one, layout.values()):
            layout[one.profile, one.start] = one
    return PendingRestore(any(those.persistence for those in every), tuple(layout.values()))


def _overlaps(one: Instance | Part, others: Iterable[Instance | Part]) -> bool:
    return any(one.start < it.start + it.size and it.start < one.start + one.size for it in others)


def finish(session: Session, gpu: str, left: Iterable[PendingRestore]) -> None:
    """Give the GPU what earlier resets left, but for what has no room beside the slices that are there now."""
    there = PendingRestore(persistence=False, layout=slices.layout(session, gpu))
    bring_back(session, gpu, together((there, *left)))


def bring_back(session: Session, gpu: str, owed: PendingRestore) -> None:
    """Give the GPU what it is owed; what is there already stays as it is."""
    deeds: list[Callable[[], None]] = []
    if owed.persistence:
        deeds.append(partial(persist, session, gpu, pynvml.NVML_FEATURE_ENABLED))
    if owed.layout:
        deeds.append(partial(_divide, session, gpu, owed.layout))
    faults = []
    for deed in deeds:
        try:
            deed()
        except DeviceLostError:
            raise
        except DeviceError as error:
            faults.append(str(error))
    if faults:
        raise DeviceError("; ".join(faults))


def persist(session: Session, gpu: str, mode: int) -> None:
    """Switch persistence mode, unless it is so already."""
    device = session.handle(gpu)
    try:
        if session.ask(pynvml.nvmlDeviceGetPersistenceMode, device) != mode:
            session.ask(pynvml.nvmlDeviceSetPersistenceMode, device, mode)
    except DeviceError as error:
        raise DeviceError(f"persistence mode cannot be switched {on_or_off(mode)}: {error}") from error


def _divide(session: Session, gpu: str, layout: Layout) -> None:
    try:
        slices.lay_out(session, gpu, layout)
    except DeviceLostError:
        raise
    except DeviceError as error:
        raise DeviceError(f"its slices did not come back: {error}") from error


def _decoded(text: bytes, gpu: str) -> PendingRestore:
    """Read strictly."""
    said = json.loads(text)
    if not isinstance(said, dict) or said.keys() != {"uuid", "persistence", "layout"} or said["uuid"] != gpu:
        raise ValueError("this is not about that device")
    if said["persistence"] not in (True, False):
        raise ValueError(f"persistence is {said['persistence']!r}")
    return PendingRestore(bool(said["persistence"]), tuple(map(_instance, said["layout"])))


def _instance(said: Mapping[str, Any]) -> Instance:
    parts = tuple(Part(str(part["uuid"]), *_numbers(part)) for part in said["parts"])
    return Instance(*_numbers(said), parts)


def _numbers(said: Mapping[str, Any]) -> tuple[int, int, int]:
    values = said["profile"], said["start"], said["size"]
    if not all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values):
        raise ValueError(f"{values!r} is no place of a slice")
    return values
