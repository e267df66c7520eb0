"""Checks of the create gate: whether it can answer the container runtime, and whether the runtime asks."""

from __future__ import annotations

from collections.abc import Iterator

from autoclave.doctor import base
from autoclave.doctor.base import CheckFault
from scrubber.core import views
from scrubber.core.model import State

NAME = "create-gate"
AGAIN = "restart `autoclave scrubber`, which installs it"
SWITCH_ON = (
    "switch CDI on in the container runtime (containerd 1.7: enable_cdi = true in /etc/containerd/config.toml; 2.0 and "
    "later have it on), and let it read the directory of --gate-cdi-dir"
)


def _create_gate(facts: base.NodeFacts) -> Iterator[base.Finding]:
    if facts.status is None:  # ``service`` says why
        return
    gate = facts.create_gate
    if gate is None:
        yield base.ok(NAME, "the create gate is off: Allocate waits for GPUs, and the pod fails after that time")
    else:
        faults = tuple(_faults(gate, facts.status))
        yield from faults or (_asked(gate, facts.status),)


def _faults(gate: base.CreateGate, status: views.Status) -> Iterator[base.Finding]:
    """Why containers with GPUs are not created, or are created without a question."""
    file = status.service.gate_specification
    if isinstance(gate.covered, CheckFault):
        yield base.unseen(NAME, f"cannot use {file}", gate.covered, AGAIN)
        return
    if missing := sorted({device.device for device in status.devices} - gate.covered):
        yield base.broken(NAME, f"{file} does not name {', '.join(missing)}", AGAIN)
    for program, fault in gate.programs.items():
        if fault is not None:
            text = f"no container with a GPU is created, because {program} does not run"
            yield base.unseen(NAME, text, fault, f"{AGAIN}; or choose a --state-dir that is not mounted noexec")
    for path, fault in gate.sockets.items():
        if fault is not None:
            text = f"no container with a GPU is created, because there is no answer at {path}"
            yield base.unseen(NAME, text, fault, "restart `autoclave scrubber`")


def _asked(gate: base.CreateGate, status: views.Status) -> base.Finding:
    """Whether the container runtime asks. Before the first container with a GPU nobody can know."""
    if gate.asked:
        return base.ok(NAME, "the create gate is in force: the container runtime has asked since the boot")
    since = status.service.started
    used = [it.name for it in status.devices if it.state == State.IN_USE.value and it.since > since]
    if gate.without_cdi:
        text = f"the container runtime does not ask the create gate: {gate.without_cdi} has enable_cdi = false"
        return base.warning(NAME, text, SWITCH_ON)
    if used:
        text = f"GPU {', '.join(used)} is in use, and the container runtime has not asked the create gate"
        return base.warning(NAME, text, SWITCH_ON)
    return base.ok(NAME, "the create gate is installed, and comes into force with the first container that gets a GPU")


CHECKS = (_create_gate,)
