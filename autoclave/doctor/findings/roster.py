"""All checks, in the order of a report, and the level of the whole report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from autoclave.doctor.finding import Finding, Level
from autoclave.doctor.findings import hardware, kubelet, node, service
from autoclave.doctor.node_facts import NodeFacts

CHECKS: tuple[Callable[[NodeFacts], Iterator[Finding]], ...] = (
    service.service, service.scrubber_socket, service.run_dir, service.ledger, service.set_aside, service.receipts,
    service.policy, service.concessions, service.unlisted, service.fence,
    service.devices,
    hardware.driver, hardware.cupy, hardware.kernels, hardware.scrub_on_free, hardware.coherent, hardware.guests,
    hardware.mps, hardware.persistence, hardware.toolkit, hardware.cdi, hardware.slices, hardware.resets,
    hardware.memory,
    node.pid_namespace, node.processes, node.privileges, node.cgroups, node.kernel_log, node.file_watches, node.clock,
    node.disk, node.plugin_dir, node.rivals,
    kubelet.create_gate, kubelet.kubelet_dir, kubelet.kubelet, kubelet.checkpoint, kubelet.double_allocation,
    kubelet.plugin, kubelet.feature_gates,
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
