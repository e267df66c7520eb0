"""What a worker child is told of an NVIDIA device: its parent, locks, pending restores and first settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from scrubber.devices.nvidia import locks
from scrubber.devices.nvidia.holders import IDLE_AT_MOST
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.pending_restore import PendingRestoreFiles

SECONDS = 60.0  # for a reset without a time limit of its step


@dataclass(frozen=True, slots=True)
class WorkerTarget:
    """Where a device is and how to handle it; ``Address.place`` is this in JSON."""

    uuid: str
    root: str
    pci_address: str
    minor: int
    parent: str | None  # the GPU of a slice
    first_seen: str  # the file with the settings that the whole GPU was first seen with
    resets: str  # the folder of reset locks
    idle_bytes: int = IDLE_AT_MOST  # in use without a holder
    left: tuple[str, ...] = ()  # settings that stay as they are
    locks: tuple[str, ...] = ()  # of everything that the reset takes down; empty: of the GPU only
    restore_only: bool = False  # only apply the pending restores
    pid_namespace: int | None = None  # shows every process of the node; None: the initial namespace
    reset_seconds: float = SECONDS  # the time limit of the step
    virtual: bool | None = False  # a vGPU: other virtual machines use the same multiprocessors; None: not known
    links: tuple[int, ...] = ()  # NVLinks of the whole GPU that were up since the node booted

    @property
    def host(self) -> Host:
        """The node of the device."""
        host = Host(Path(self.root))
        return host if self.pid_namespace is None else replace(host, pid_namespace=self.pid_namespace)

    @property
    def gpu(self) -> str:
        """The UUID of the whole GPU; for a slice, of its parent."""
        return self.parent or self.uuid

    @property
    def lock(self) -> Path:
        """The reset lock of the whole GPU."""
        return locks.file_of(Path(self.resets), self.gpu)

    @property
    def reset_locks(self) -> tuple[Path, ...]:
        """The locks of all that the reset takes down."""
        return tuple(locks.file_of(Path(self.resets), name) for name in self.locks or (self.gpu,))

    @property
    def notes(self) -> PendingRestoreFiles:
        """Where a reset stores what it must restore."""
        return PendingRestoreFiles(Path(self.first_seen).parent, self.gpu)
