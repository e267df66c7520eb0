"""A check of the doctor, and its findings: text, level (ok, warning, broken) and remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from autoclave.doctor.facts import service_facts
from autoclave.doctor.node_facts import CheckFault, Node
from scrub_api import views

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
    """A result of a check, which gives it its name. The remedy is empty when there is nothing to do."""

    level: Level
    text: str
    remedy: str = ""
    name: str = ""


def ok(text: str) -> Finding:
    """A finding without a problem."""
    return Finding(Level.OK, text)


def warning(text: str, remedy: str) -> Finding:
    """A finding that a person should know; the promise is kept."""
    return Finding(Level.WARNING, text, remedy)


def broken(text: str, remedy: str) -> Finding:
    """A finding that breaks the promise, or stops the node from handing out devices."""
    return Finding(Level.BROKEN, text, remedy)


def as_root(fault: CheckFault, remedy: str) -> str:
    """The remedy. When access was denied, it is to become root; for root, what may still be in the way."""
    if fault.denied:
        return HIDDEN_FROM_ROOT if fault.to_root else OTHER_USER
    return remedy


def unseen(text: str, fault: CheckFault, remedy: str, level: Level = Level.BROKEN) -> Finding:
    """A finding about something that could not be read: it counts as the worst that it may be."""
    return Finding(level, f"{text}: {fault.text}", as_root(fault, remedy))


@dataclass(frozen=True, slots=True)
class Check:
    """A check: the name of its findings, whether they concern the kubelet, our plugin or pods, and what makes them."""

    name: str
    of_kubernetes: bool
    findings: Callable[[Node], Iterator[Finding]]


def check(
    name: str, *when: Callable[[Node], bool], of_kubernetes: bool = False
) -> Callable[[Callable[[Node], Iterator[Finding]]], Check]:
    """Make a check of a function. Where one of ``when`` does not hold, another finding says why, and this has none."""

    def made(judge: Callable[[Node], Iterator[Finding]]) -> Check:
        def findings(node: Node) -> Iterator[Finding]:
            if all(holds(node) for holds in when):
                yield from (replace(finding, name=name) for finding in judge(node))

        return Check(name, of_kubernetes, findings)

    return made


def check_of_service(
    name: str, *when: Callable[[Node], bool], of_kubernetes: bool = False
) -> Callable[[Callable[[Node, views.Status], Iterator[Finding]]], Check]:
    """The same of a function that also takes the status of the service; without a status it has no finding."""

    def made(judge: Callable[[Node, views.Status], Iterator[Finding]]) -> Check:
        def with_status(node: Node) -> Iterator[Finding]:
            status = service_facts.status(node)
            yield from judge(node, status) if status is not None else ()

        return check(name, *when, of_kubernetes=of_kubernetes)(with_status)

    return made
