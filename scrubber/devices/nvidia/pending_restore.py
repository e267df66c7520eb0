"""What a reset removes from a GPU and must restore, stored on disk until it is restored.

A reset removes slices and persistence mode, and the worker may be killed before it restores them. So the worker stores
them before it starts. The next worker that resets this GPU, or restores its settings, applies the pending restore.
Nothing else is stored: the driver keeps ECC and MIG mode, and each scrub restores all other settings.
Earlier releases also stored single slices, each in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pynvml

from ground import private_files
from ground.documents import strict_json
from scrubber.devices.base import DeviceError, DeviceLostError, ShortageError
from scrubber.devices.nvidia import slices
from scrubber.devices.nvidia.nvml import Session
from scrubber.devices.nvidia.settings import on_or_off
from scrubber.devices.nvidia.slices import Instance, Layout, Part

_SUFFIX = "resetting.json"


@dataclass(frozen=True, slots=True)
class PendingRestore:
    """What is to be restored on a GPU."""

    persistence: bool  # whether to switch it on
    layout: Layout

    def __bool__(self) -> bool:
        return self.persistence or bool(self.layout)


@dataclass(frozen=True, slots=True)
class PendingRestoreFiles:
    """The stored pending restores of one GPU."""

    folder: Path
    gpu: str

    def file(self) -> Path:
        """The file that a reset writes."""
        return self.folder / f"{self.gpu}.{_SUFFIX}"

    def read(self) -> dict[Path, PendingRestore]:
        """All pending restores by file. DeviceError if a file was changed or damaged."""
        pending = {}
        for path in sorted(self.folder.glob(f"{self.gpu}.*{_SUFFIX}")):
            try:
                pending[path] = strict_json.decode(PendingRestore, private_files.content(path))
            except FileNotFoundError:  # another worker has just applied it
                continue
            except (OSError, ValueError) as error:
                why = f"{error}; repair {self.gpu} and remove the file"
                raise DeviceError(f"cannot read the pending restore in {path}: {why}") from error
        return pending

    def write(self, path: Path, pending: PendingRestore) -> None:
        """Write the file atomically and sync it to disk."""
        try:
            private_files.make_folder(path.parent)
            private_files.replace(path, strict_json.encode(pending, indent=2))
        except OSError as error:
            raise DeviceError(f"cannot store what a reset must restore: {error}") from error

    def drop(self, paths: Iterable[Path]) -> None:
        """Remove the files of completed restores."""
        try:
            for path in paths:
                path.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                private_files.sync_directory(self.folder)
        except OSError as error:
            raise DeviceError(f"cannot remove a completed pending restore: {error}") from error


def gpus(folder: Path) -> frozenset[str]:
    """The UUIDs of GPUs with a pending restore."""
    return frozenset(path.name.split(".")[0] for path in folder.glob(f"[!.]*.{_SUFFIX}"))


def merged(pending: Iterable[PendingRestore]) -> PendingRestore:
    """One restore for all. Of two instances that overlap, the first counts."""
    restores = tuple(pending)
    layout: dict[tuple[int, int], Instance] = {}
    for one in (one for restore in restores for one in restore.layout):
        same = layout.get((one.profile, one.start))
        if same is not None:
            parts = tuple(part for part in one.parts if not _overlaps(part, same.parts))
            layout[one.profile, one.start] = replace(same, parts=same.parts + parts)
        elif not _overlaps(one, layout.values()):
            layout[one.profile, one.start] = one
    return PendingRestore(any(restore.persistence for restore in restores), tuple(layout.values()))


def _overlaps(one: Instance | Part, others: Iterable[Instance | Part]) -> bool:
    return any(one.start < other.start + other.size and other.start < one.start + one.size for other in others)


def apply_all(session: Session, notes: PendingRestoreFiles) -> None:
    """Apply the stored restores, and delete their files. A slice that overlaps an existing slice is not made again.

    The caller holds the locks that keep others from creating slices.
    """
    pending = notes.read()
    try:
        present = PendingRestore(persistence=False, layout=slices.layout(session, notes.gpu))
        apply(session, notes.gpu, merged((present, *pending.values())))
    except DeviceLostError:
        raise
    except DeviceError as error:
        remedy = f"repair it and remove {', '.join(map(str, pending))}"
        raise DeviceError(f"cannot apply the pending restore of {notes.gpu}: {error}; {remedy}") from error
    notes.drop(pending)


def apply(session: Session, gpu: str, pending: PendingRestore) -> None:
    """Restore persistence mode and slices; slices that exist already stay."""
    actions: list[Callable[[], None]] = []
    if pending.persistence:
        actions.append(partial(persist, session, gpu, pynvml.NVML_FEATURE_ENABLED))
    if pending.layout:
        actions.append(partial(_divide, session, gpu, pending.layout))
    faults = []
    for action in actions:
        try:
            action()
        except (DeviceLostError, ShortageError):
            raise
        except DeviceError as error:
            faults.append(str(error))
    if faults:
        raise DeviceError("; ".join(faults))


def persist(session: Session, gpu: str, mode: int) -> None:
    """Set persistence mode, unless it is set already."""
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
