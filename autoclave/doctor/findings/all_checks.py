"""All checks, in the order of a report, and the level of the whole report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from autoclave.doctor.finding import Finding, Level
from autoclave.doctor.findings import driver_checks, kubelet_checks, node_checks, service_checks
from autoclave.doctor.node_facts import NodeFacts

CHECKS: tuple[Callable[[NodeFacts], Iterator[Finding]], ...] = (
    service_checks.service, service_checks.scrubber_socket, service_checks.run_dir, service_checks.ledger,
    service_checks.set_aside, service_checks.receipts, service_checks.policy, service_checks.concessions,
    service_checks.unlisted, service_checks.fence, service_checks.devices,
    driver_checks.driver, driver_checks.cupy, driver_checks.kernels, driver_checks.scrub_on_free,
    driver_checks.coherent, driver_checks.guests, driver_checks.mps, driver_checks.persistence, driver_checks.toolkit,
    driver_checks.cdi, driver_checks.slices, driver_checks.resets, driver_checks.memory,
    node_checks.pid_namespace, node_checks.processes, node_checks.privileges, node_checks.cgroups,
    node_checks.kernel_log, node_checks.file_watches, node_checks.clock, node_checks.disk, node_checks.plugin_dir,
    node_checks.rivals,
    kubelet_checks.create_gate, kubelet_checks.kubelet_dir, kubelet_checks.kubelet, kubelet_checks.checkpoint,
    kubelet_checks.double_allocation, kubelet_checks.plugin, kubelet_checks.feature_gates,
)  # fmt: skip

NAMES = (
    "service", "scrubber-socket", "run-dir", "ledger", "ledger-set-aside", "receipts", "policy", "concession",
    "bystanders", "fence",
    "device", "driver", "cupy", "kernels", "scrub-on-free", "coherent-memory", "vgpu-host", "mps", "persistence",
    "container-toolkit", "cdi", "mig-driver", "reset", "ecc", "pid-namespace", "processes", "privileges", "cgroups",
    "kernel-log", "file-watches", "clock", "disk", "create-gate", "plugin-dir", "rival-plugin", "kubelet-dir",
    "kubelet", "checkpoint", "double-allocation", "plugin", "feature-gates",
)  # fmt: skip
"""The names of findings, to select some of them."""

OF_KUBERNETES = frozenset(
    {
        "container-toolkit", "cdi", "create-gate", "plugin-dir", "kubelet-dir", "kubelet", "checkpoint",
        "double-allocation", "plugin", "feature-gates",
    }
)  # fmt: skip
"""The names of findings about the kubelet, our device plugin, and how pods get GPUs."""


def judge(facts: NodeFacts) -> tuple[Finding, ...]:
    """All findings, in the order of ``CHECKS``."""
    return tuple(finding for check in CHECKS for finding in check(facts))


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level of a report. A report without findings has checked nothing, so it counts as broken."""
    levels = {finding.level for finding in findings}
    return next((level for level in (Level.BROKEN, Level.WARNING, Level.OK) if level in levels), Level.BROKEN)
