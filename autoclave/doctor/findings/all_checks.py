"""All checks, in the order of a report, and the level of the whole report."""

from __future__ import annotations

from collections.abc import Container, Iterable

from autoclave.doctor.finding import Check, Finding, Level
from autoclave.doctor.findings import driver_checks, kubelet_checks, node_checks, service_checks
from autoclave.doctor.node_facts import Node

_ROOMS = (service_checks, driver_checks, node_checks, kubelet_checks)
CHECKS = tuple(found for room in _ROOMS for found in vars(room).values() if isinstance(found, Check))
NAMES = tuple(check.name for check in CHECKS)
OF_KUBERNETES = frozenset(check.name for check in CHECKS if check.of_kubernetes)


def judge(node: Node, wanted: Container[str] = NAMES) -> tuple[Finding, ...]:
    """The findings of these names, in the order of ``CHECKS``. Only what they need is asked of the node."""
    return tuple(finding for check in CHECKS if check.name in wanted for finding in check.findings(node))


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level of a report. A report without findings has checked nothing, so it counts as broken."""
    levels = {finding.level for finding in findings}
    return next((level for level in (Level.BROKEN, Level.WARNING, Level.OK) if level in levels), Level.BROKEN)
