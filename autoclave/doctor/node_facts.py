"""The facts about a node that the doctor gathers, and why one could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ground.errors import AutoclaveError
from scrub_api import views
from scrubber.core.model import Holder

NVIDIA = "nvidia"  # the backend


@dataclass(frozen=True, slots=True)
class CheckFault:
    """Why something could not be used, what to do if that is known, and whether it is missing or access was denied."""

    text: str
    absent: bool = False
    denied: bool = False
    to_root: bool = False  # access was denied though this check runs as root
    dead: bool = False  # of a socket: certainly no process listens there
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory. ``private`` and ``ours`` have no meaning when there is a fault."""

    path: str
    fault: CheckFault | None = None
    private: bool = False  # only its owner may enter
    ours: bool = False  # the user that runs the doctor is its owner


@dataclass(frozen=True, slots=True)
class Socket:
    """A socket, and why it accepts no connections."""

    path: str
    fault: CheckFault | None = None


@dataclass(frozen=True, slots=True)
class Sockets:
    """The sockets of a directory, or why they cannot be listed."""

    directory: str
    found: tuple[Socket, ...] = ()
    fault: CheckFault | None = None


class Capability(Enum):
    """The privileges that the service needs, by their numbers in the kernel."""

    DAC_READ_SEARCH = 2
    KILL = 5
    SYS_PTRACE = 19
    SYS_ADMIN = 21


@dataclass(frozen=True, slots=True)
class Process:
    """The privileges of a process, and whether it sees every process of the node."""

    sees_all: bool
    capabilities: int  # one bit each

    def may(self, capability: Capability) -> bool:
        """Whether the process has this capability."""
        return bool(self.capabilities >> capability.value & 1)


@dataclass(frozen=True, slots=True)
class ToolkitConfig:
    """A configuration of NVIDIA's container toolkit: how a container without privileges can get GPUs."""

    path: str
    by_environment: bool = True
    by_mounts: bool = False
    fault: CheckFault | None = None  # then the two fields above have no meaning


@dataclass(frozen=True, slots=True)
class Toolkit:
    """NVIDIA's container toolkit. Without a configuration its defaults apply."""

    installed: bool
    configs: tuple[ToolkitConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """A CDI specification: the devices that a container runtime knows by name. Empty when there is a fault."""

    path: str
    kind: str = ""
    names: frozenset[str] = frozenset()
    fault: CheckFault | None = None


@dataclass(frozen=True, slots=True)
class CreateGateFacts:
    """The create gate as the container runtime finds it."""

    covered: frozenset[str] | CheckFault  # the devices with a hook in the specification
    programs: Mapping[str, CheckFault | None]  # the programs of the hooks, and why they do not run
    sockets: Mapping[str, CheckFault | None]  # where the programs ask, and why there is no answer
    without_cdi: str = ""  # the configuration of a container runtime that switches CDI off


@dataclass(frozen=True, slots=True)
class Room:
    """Free space of a filesystem. ``free_files`` is None where the filesystem does not count files."""

    free_bytes: int
    free_files: int | None


@dataclass(frozen=True, slots=True)
class Python:
    """A Python interpreter, and what it lacks; empty when nothing is missing."""

    path: str
    lacks: str = ""
    cupy: str = ""  # the extra that installed CuPy; empty if it is not known


@dataclass(frozen=True, slots=True)
class LastError:
    """The error that ended the last run of the service, and its wall time."""

    text: str
    at: float
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """All facts about a node, its driver and its service."""

    now: float
    answer: views.Status | AutoclaveError  # the status of the service, or why there is none
    last_error: LastError | None = None  # that ended the service
    scrubber_socket: Socket
    run_dir: Directory
    process: Process | CheckFault  # that serves the operators' socket
    receipt_key: str | CheckFault | None  # the id of the key that signs receipts; None: ``cryptography`` is missing
    room: Room | CheckFault | None  # at the ledger; None when its place is not known
    create_gate: CreateGateFacts | None = None  # None: it is off, or the service does not answer

    driver: str | CheckFault  # the loaded version
    libraries: tuple[str, ...]  # the installed versions of the driver's library, as far as found
    options: Mapping[str, str] | CheckFault  # the options with which the driver says it was loaded
    shared_with_guests: tuple[str, ...] | CheckFault  # the signs that virtual machines share GPUs
    cupy: Python  # whether CuPy is installed for the Python of the doctor
    kernels: bool = True  # whether the installation of the doctor has compiled kernels
    mps: tuple[str, ...] | CheckFault  # the processes of CUDA's multi-process service
    persistenced: bool | CheckFault
    persistence_kept: bool = False  # each scrub keeps the persistence mode on, also without that daemon
    toolkit: Toolkit
    cdi: tuple[CdiSpec, ...]
    cdi_kind: str = ""  # prefix of the CDI names of devices; empty when not configured
    numa_gpus: tuple[str, ...] | CheckFault = ()  # PCI addresses of GPUs whose memory is a NUMA node of the host
    on_bus: tuple[str, ...] = ()  # PCI addresses of NVIDIA's GPUs
    on_ec2: bool = False
    on_kubernetes: bool = True  # where it is not, no advice names a pod
    openers: Mapping[str, tuple[Holder, ...]] = field(default_factory=dict)  # of GPUs, by UUID: they prevent a reset

    cgroups: str | CheckFault  # the versions in use, in words
    sees_all: bool | CheckFault  # whether the doctor sees every process of the node
    unreadable: CheckFault | None = None  # the first process that the doctor cannot read, and why
    kernel_log: CheckFault | None = None  # why the kernel's log cannot be read
    file_watches: CheckFault | None = None  # why this user cannot watch files

    kubelet_dir: Directory
    kubelet_dir_writable: bool
    kubelet: Socket
    plugin: Sockets
    rivals: Sockets  # sockets of other plugins for NVIDIA GPUs
    in_front: str = ""  # where a vendor's plugin registers with ours, instead of with the kubelet
    checkpoint: Mapping[str, frozenset[str]] | CheckFault  # the pods of each device, as the kubelet knows them
    registered: Mapping[str, frozenset[str]] | CheckFault  # the healthy devices of each resource, as it knows them
    missing_gates: frozenset[str] | CheckFault | None = None  # of the API server; None: without a DRA driver

    @property
    def status(self) -> views.Status | None:
        """The service's answer, if it gave one."""
        return self.answer if isinstance(self.answer, views.Status) else None

    @property
    def guards_nvidia(self) -> bool:
        """Whether the service guards NVIDIA GPUs. Without an answer: whether there is a driver or a GPU of NVIDIA."""
        if self.status is not None:
            return self.status.service.backend == NVIDIA
        return isinstance(self.driver, str) or not self.driver.absent or bool(self.on_bus)
