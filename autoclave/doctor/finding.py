"""A finding of the doctor: what a check says about the facts, how bad that is, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from autoclave.doctor.node_facts import CheckFault

OTHER_USER = "become the user that runs the service (root, usually)"
HIDDEN_FROM_ROOT = (
    "let root keep CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH in the node's PID namespace "
    "(in a pod: securityContext.capabilities.add, and hostPID: true); if it has them, SELinux, AppArmor or the kernel "
    "itself refuses: run the service unconfined, and find the refusal in the kernel's log or the audit log"
)


class Level(Enum):
    """How bad a finding is. BROKEN: a promise is not kept, or no device is handed out."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. The remedy is empty when there is nothing to do."""

    name: str
    level: Level
    text: str
    remedy: str = ""


def ok(name: str, text: str) -> Finding:
    """A finding without a problem."""
    return Finding(name, Level.OK, text)


def warning(name: str, text: str, remedy: str) -> Finding:
    """A finding that a person should know; the promise is kept."""
    return Finding(name, Level.WARNING, text, remedy)


def broken(name: str, text: str, remedy: str) -> Finding:
    """A finding that breaks the promise, or stops the node from handing out devices."""
    return Finding(name, Level.BROKEN, text, remedy)


def as_root(fault: CheckFault, remedy: str) -> str:
    """The remedy. When access was denied, it is to become root; for root, what may still be in the way."""
    if fault.denied:
        return HIDDEN_FROM_ROOT if fault.to_root else OTHER_USER
    return remedy


def unseen(name: str, text: str, fault: CheckFault, remedy: str, level: Level = Level.BROKEN) -> Finding:
    """A finding about something that could not be read: it counts as the worst that it may be."""
    return Finding(name, level, f"{text}: {fault.text}", as_root(fault, remedy))
