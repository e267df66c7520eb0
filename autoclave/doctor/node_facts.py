"""The node that the doctor asks, the types of its answers, and ``CheckFault``: why there is no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from scrub_api import views

PROC = Path("/proc")  # of this process: no mounted directory shows the processes of the host
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Node:
    """Where the doctor looks on a node, how it asks the service for its status, and the answers so far."""

    run_dir: Path
    kubelet_dir: Path
    host_root: Path
    ask: Callable[[Path], views.Status]
    cdi_kind: str = ""  # prefix of the CDI names of devices; empty when not configured
    driver_name: str = ""  # of the DRA driver; empty without one
    proc: Path = field(default_factory=lambda: PROC)
    answers: dict[Callable[..., Any], Any] = field(default_factory=dict)  # by the facts that were asked for


def fact(look: Callable[Concatenate[Node, P], T]) -> Callable[Concatenate[Node, P], T]:
    """Look once: a second check gets the answer of the first one, and a test of a check says it beforehand.

    What the function takes beside the node follows from the node, such as a path that the service names.
    """

    @wraps(look)
    def once(node: Node, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if once not in node.answers:
            node.answers[once] = look(node, *args, **kwargs)
        answer: T = node.answers[once]
        return answer

    return once


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
