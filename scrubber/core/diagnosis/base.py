"""What checks are given and what they say: facts that were gathered before, and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from scrubber.core import views
from scrubber.ground.errors import AutoclaveError

OTHER_USER = "become the user that runs the service (root, usually)"
NVIDIA = "nvidia"  # the backend


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
class CheckFault:
    """Why something could not be used: what to do depends on whether it is there and for us to see."""

    text: str
    absent: bool = False
    denied: bool = False
    dead: bool = False  # of a socket: nobody listens there, for certain


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory; ``private`` and ``ours`` say nothing when there is a fault."""

    path: str
    fault: CheckFault | None = None
    private: bool = False  # nobody but its owner may enter
    ours: bool = False  # we are its owner


@dataclass(frozen=True, slots=True)
class Socket:
    """A socket, and why nobody takes connections there."""

    path: str
    fault: CheckFault | None = None


@dataclass(frozen=True, slots=True)
class Sockets:
    """The sockets of a directory, or why they cannot be listed."""

    directory: str
    found: tuple[Socket, ...] = ()
    fault: CheckFault | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The pods that each device is written down for, or why it cannot be told."""

    owners: Mapping[str, frozenset[str]] = field(default_factory=dict)
    fault: CheckFault | None = None


class Capability(Enum):
    """What the service needs of root, by its number in the kernel."""

    DAC_READ_SEARCH = 2
    KILL = 5
    SYS_PTRACE = 19
    SYS_ADMIN = 21


@dataclass(frozen=True, slots=True)
class Process:
    """What a process may do, and whether it sees every process of the node."""

    sees_all: bool
    capabilities: int  # one bit each

    def may(self, capability: Capability) -> bool:
        """Whether it has this one."""
        return bool(self.capabilities >> capability.value & 1)


@dataclass(frozen=True, slots=True)
class ToolkitConfig:
    """A configuration of NVIDIA's container toolkit: which wishes of a container without privileges it grants."""

    path: str
    by_environment: bool = True
    by_mounts: bool = False
    fault: CheckFault | None = None  # then the two above say nothing


@dataclass(frozen=True, slots=True)
class Toolkit:
    """NVIDIA's container toolkit. One that is installed and has no configuration does as its defaults say."""

    installed: bool
    configs: tuple[ToolkitConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """A CDI specification: the devices that a container runtime knows by name; of none when there is a fault."""

    path: str
    kind: str = ""
    names: frozenset[str] = frozenset()
    fault: CheckFault | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """What a filesystem has left; no number of files where it does not count them."""

    free_bytes: int
    free_files: int | None


@dataclass(frozen=True, slots=True)
class Python:
    """A Python, and what is missing there; nothing, if it is empty."""

    path: str
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class Posture:
    """Everything of the node and the driver that is judged."""

    driver: str | CheckFault  # the version that is loaded
    libraries: tuple[str, ...]  # the versions of the driver's library that are installed, as far as they were found
    options: Mapping[str, str] | CheckFault  # what the driver says it was loaded with
    shared_with_guests: tuple[str, ...] | CheckFault  # what tells that GPUs are shared with virtual machines
    cupy: Python  # whether it is installed for whoever looks
    mps: tuple[str, ...] | CheckFault  # the processes of CUDA's multi-process service
    persistenced: bool | CheckFault
    toolkit: Toolkit
    cdi: tuple[CdiSpec, ...]
    cgroups: str | CheckFault  # the versions that are in use, in words
    sees_all: bool | CheckFault  # whether who looks sees every process of the node
    service: Process | CheckFault
    room: Room | CheckFault | None  # where the ledger is; None when nobody says where that is
    kubelet_dir_writable: bool
    rivals: Sockets  # where other plugins for GPUs of NVIDIA have their sockets
    registered: (
        Mapping[str, frozenset[str]] | CheckFault
    )  # the healthy devices of each resource, as the kubelet knows them
    kernel_log: CheckFault | None = None  # why the kernel's log cannot be read


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What was seen of a node. ``answer`` is the service's, or why there is none."""

    now: float
    answer: views.Status | AutoclaveError
    door: Socket
    run_dir: Directory
    kubelet_dir: Directory
    kubelet: Socket
    checkpoint: Checkpoint
    plugin: Sockets
    posture: Posture
    cdi_kind: str = ""  # what CDI names of devices will begin with; empty where nobody says that there will be any

    @property
    def status(self) -> views.Status | None:
        """The service's answer, if it gave one."""
        return self.answer if isinstance(self.answer, views.Status) else None

    @property
    def guards_nvidia(self) -> bool:
        """Whether the service works on GPUs of NVIDIA; while it does not say, whether a driver for them is here."""
        if self.status is not None:
            return self.status.service.backend == NVIDIA
        return isinstance(self.posture.driver, str) or not self.posture.driver.absent


def ok(name: str, text: str) -> Finding:
    """It was looked at and is as it should be."""
    return Finding(name, Level.OK, text)


def warning(name: str, text: str, remedy: str) -> Finding:
    """A person should know, and the promise is kept."""
    return Finding(name, Level.WARNING, text, remedy)


def broken(name: str, text: str, remedy: str) -> Finding:
    """A promise is not kept, or nothing is handed out."""
    return Finding(name, Level.BROKEN, text, remedy)


def as_root(fault: CheckFault, remedy: str) -> str:
    """What may not be seen is first of all not broken, but to be looked at by somebody else."""
    return OTHER_USER if fault.denied else remedy


def unseen(name: str, text: str, fault: CheckFault, remedy: str, level: Level = Level.BROKEN) -> Finding:
    """What could not be looked at is as bad as it might be."""
    return Finding(name, level, f"{text}: {fault.text}", as_root(fault, remedy))
