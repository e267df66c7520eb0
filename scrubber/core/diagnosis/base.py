"""What checks are given and what they say: facts that were gathered before, and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from scrubber.core import view
from scrubber.errors import AutoclaveError

OTHER_USER = "become the user that runs the service (root, usually)"


class Level(Enum):
    """How bad it is, from nothing to do up to a promise that is not kept or a node that hands out nothing."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; the remedy is empty when there is nothing to do."""

    name: str
    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why something could not be used: what to do depends on whether it is there and for us to see."""

    text: str
    absent: bool = False
    denied: bool = False


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory; ``private`` and ``ours`` say nothing when there is a fault."""

    path: str
    fault: Fault | None = None
    private: bool = False  # nobody but its owner may enter
    ours: bool = False  # we are its owner


@dataclass(frozen=True, slots=True)
class Socket:
    """A socket, and why nobody takes connections there."""

    path: str
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Sockets:
    """The sockets of a directory, or why they cannot be listed."""

    directory: str
    found: tuple[Socket, ...] = ()
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The pods that each device is written down for, or why it cannot be told."""

    owners: Mapping[str, frozenset[str]] = field(default_factory=dict)
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen of a node. ``answer`` is the service's, or why there is none."""

    now: float
    answer: view.Status | AutoclaveError
    door: Socket
    run_dir: Directory
    kubelet_dir: Directory
    kubelet: Socket
    checkpoint: Checkpoint
    plugin: Sockets

    @property
    def status(self) -> view.Status | None:
        """The service's answer, if it gave one."""
        return self.answer if isinstance(self.answer, view.Status) else None


def ok(name: str, text: str) -> Finding:
    """It was looked at and is as it should be."""
    return Finding(name, Level.OK, text)


def warning(name: str, text: str, remedy: str) -> Finding:
    """A person should know, and the promise is kept."""
    return Finding(name, Level.WARNING, text, remedy)


def broken(name: str, text: str, remedy: str) -> Finding:
    """A promise is not kept, or nothing is handed out."""
    return Finding(name, Level.BROKEN, text, remedy)


def as_root(fault: Fault, remedy: str) -> str:
    """What may not be seen is first of all not broken, but to be looked at by somebody else."""
    return OTHER_USER if fault.denied else remedy
