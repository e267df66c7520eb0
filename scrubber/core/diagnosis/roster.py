"""All checks, in the order in which they are told, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from scrubber.core.diagnosis import devices, hardware, kubelet, node, service
from scrubber.core.diagnosis.base import Finding, Level, NodeFacts

CHECKS: tuple[Callable[[NodeFacts], Iterator[Finding]], ...] = (
    *service.CHECKS,
    *devices.CHECKS,
    *hardware.CHECKS,
    *node.CHECKS,
    *kubelet.CHECKS,
)

NAMES = (
    "service", "service-door", "run-dir", "ledger", "ledger-set-aside", "policy", "concession", "device", "driver",
    "cupy", "scrub-on-free", "vgpu-host", "mps", "persistence", "container-toolkit", "cdi", "pid-namespace",
    "privileges", "cgroups", "kernel-log", "clock", "disk", "plugin-dir", "rival-plugin", "kubelet-dir", "kubelet",
    "checkpoint", "double-allocation", "plugin",
)  # fmt: skip
"""What findings are called, for whoever wants to hear of some only."""


def judge(facts: NodeFacts) -> tuple[Finding, ...]:
    """Everything that there is to say, in the order of ``CHECKS``."""
    return tuple(finding for check in CHECKS for finding in check(facts))


def worst(findings: Iterable[Finding]) -> Level:
    """The level of the whole report. A report without a finding has seen nothing, and that is not good."""
    levels = {finding.level for finding in findings}
    return next((level for level in (Level.BROKEN, Level.WARNING, Level.OK) if level in levels), Level.BROKEN)
