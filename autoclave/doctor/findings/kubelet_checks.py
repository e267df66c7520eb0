"""Checks of the create gate, the kubelet, its checkpoint and the plugin."""

from __future__ import annotations

from collections.abc import Iterator

from autoclave.doctor.finding import Finding, as_root, broken, ok, unseen, warning
from autoclave.doctor.node_facts import CheckFault, CreateGateFacts, NodeFacts
from ground import errors
from ground.quantities import quantity
from scrub_api import views
from scrubber.core import gate_in_force
from scrubber.core.model import State

GATE = "create-gate"
INSTALLS = "the service installs it when it starts"
RESTARTED = "if the container runtime was restarted since, start a new pod on the GPU"
SWITCH_ON = (
    "switch CDI on in the container runtime (containerd 1.7: enable_cdi = true in /etc/containerd/config.toml; 2.0 and "
    "later have it on), and let it read the directory of --gate-cdi-dir"
)

GATES = {
    "DRADeviceTaints": "unhealthy devices are left out of the slice, without a reason",
}
"""The feature gates of optional fields of a ResourceSlice, and what the DRA driver does without them."""

GATES_SINCE = "1.36"
OTHER_DIRECTORY = (
    "name the kubelet's directory with --kubelet-dir, or mount it here; on a node without Kubernetes, run `autoclave"
    " doctor --without-kubernetes`"
)


def create_gate(facts: NodeFacts) -> Iterator[Finding]:
    """The container runtime asks before it creates a container with a GPU."""
    if facts.status is None:  # ``service`` says why
        return
    gate = facts.create_gate
    if gate is None:
        yield ok(GATE, "the create gate is off")
    else:
        if gate.without_cdi:  # first: the container runtime may read it at its next start
            text = f"{gate.without_cdi} has enable_cdi = false: the container runtime does not ask the create gate"
            yield warning(GATE, text, SWITCH_ON)
        faults = tuple(_faults(gate, facts.status))
        yield from faults or (_in_force(facts.status, facts.now),)


def _faults(gate: CreateGateFacts, status: views.Status) -> Iterator[Finding]:
    """Why containers with GPUs are not created, or are created without a question."""
    file = status.service.gate_specification
    if isinstance(gate.covered, CheckFault):
        yield unseen(GATE, f"cannot use {file}", gate.covered, f"{errors.restart(on_kubernetes=True)}; {INSTALLS}")
        return
    if missing := sorted({device.device for device in status.devices} - gate.covered):
        yield broken(
            GATE, f"{file} does not name {', '.join(missing)}", f"{errors.restart(on_kubernetes=True)}; {INSTALLS}"
        )
    for program, fault in gate.programs.items():
        if fault is not None:
            text = f"no container with a GPU is created, because {program} does not run"
            remedy = (
                f"{errors.restart(on_kubernetes=True)}; {INSTALLS}; or choose a --state-dir that is not mounted noexec"
            )
            yield unseen(GATE, text, fault, remedy)
    for path, fault in gate.sockets.items():
        if fault is not None:
            text = f"no container with a GPU is created, because there is no answer at {path}"
            yield unseen(GATE, text, fault, errors.restart(on_kubernetes=True))


def _in_force(status: views.Status, now: float) -> Finding:
    """Whether the container runtime asks. Before the first container with a GPU nobody can know.

    A restart of the runtime ends what is known, also while containers run that have passed the gate.
    """
    here, since = set(status.service.gate_in_force), max(status.service.started, now - gate_in_force.LASTS)
    used = [device.name for device in status.devices if device.state == State.IN_USE.value and device.since > since]
    unasked = [device.name for device in status.devices if device.name in used and device.device not in here]
    if unasked:
        text = f"GPU {', '.join(unasked)} is in use, and the create gate is not in force on it"
        return warning(GATE, text, f"{RESTARTED}; otherwise {SWITCH_ON}")
    if here:
        count = f"{len(here)} of {quantity(len(status.devices), 'GPU')}"
        return ok(GATE, f"the create gate is in force on {count}: the container runtime asks")
    return ok(GATE, "the create gate is installed, and comes into force with the first container that gets a GPU")


def kubelet_dir(facts: NodeFacts) -> Iterator[Finding]:
    """The kubelet's directory can be used."""
    directory = facts.kubelet_dir
    if directory.fault is not None:
        text = f"cannot use the kubelet's directory {directory.path}: {directory.fault.text}"
        yield broken("kubelet-dir", text, as_root(directory.fault, OTHER_DIRECTORY))
    else:
        yield ok("kubelet-dir", f"the kubelet's directory is {directory.path}")


def kubelet(facts: NodeFacts) -> Iterator[Finding]:
    """The kubelet accepts connections."""
    if facts.kubelet_dir.fault is not None:
        return
    socket = facts.kubelet
    if socket.fault is None:
        yield ok("kubelet", f"the kubelet accepts connections at {socket.path}")
        return
    text = f"the kubelet accepts no connections at {socket.path}: {socket.fault.text}"
    yield broken("kubelet", text, as_root(socket.fault, "start the kubelet, or read its log if it runs"))


def checkpoint(facts: NodeFacts) -> Iterator[Finding]:
    """The kubelet's checkpoint can be read."""
    if facts.kubelet_dir.fault is not None:
        return
    fault = facts.checkpoint
    if not isinstance(fault, CheckFault):
        yield ok("checkpoint", "the kubelet's checkpoint can be read: it names the pod of each device")
    elif fault.absent:
        text = "the kubelet has no checkpoint yet; without it, no container starts on a GPU"
        remedy = "start `autoclave plugin`: the kubelet writes it when the first plugin lists its devices"
        yield warning("checkpoint", text, remedy)
    else:
        remedy = (
            "if the kubelet was restarted with this checkpoint, drain the node, because the kubelet believes "
            "that every GPU is free; otherwise the kubelet writes a new checkpoint"
        )
        text = fault.text if fault.denied else f"no container starts on a GPU: {fault.text}"
        yield broken("checkpoint", text, as_root(fault, remedy))


def double_allocation(facts: NodeFacts) -> Iterator[Finding]:
    """Two pods on one device: the kubelet can forget an allocation in progress (kubernetes/kubernetes#137534)."""
    if facts.kubelet_dir.fault is not None or isinstance(facts.checkpoint, CheckFault):
        return
    # Other resources may share an id. While our devices are not known, all entries count.
    ours = facts.checkpoint.keys() if facts.status is None else {device.device for device in facts.status.devices}
    double = [(device, pods) for device, pods in facts.checkpoint.items() if device in ours and len(pods) > 1]
    for device, pods in sorted(double):
        text = f"the kubelet gave {device} to several pods at once: {', '.join(sorted(pods))}"
        yield broken(
            "double-allocation",
            text,
            "if only one of these pods runs, delete the others; if several run, delete all of them",
        )
    if not double:
        yield ok("double-allocation", "the kubelet gave no GPU to two pods")


def plugin(facts: NodeFacts) -> Iterator[Finding]:
    """A device plugin of ours serves."""
    if facts.kubelet_dir.fault is not None:
        return
    sockets = facts.plugin
    if sockets.fault is not None and not sockets.fault.absent:
        text = f"cannot list the sockets in {sockets.directory}: {sockets.fault.text}"
        yield broken("plugin", text, as_root(sockets.fault, OTHER_DIRECTORY))
        return
    if not sockets.found:
        text = f"no device plugin serves in {sockets.directory}: no pod gets a GPU through Autoclave"
        yield broken("plugin", text, "start `autoclave plugin`, or read its log if it runs")
        return
    alive = any(socket.fault is None for socket in sockets.found)
    for socket in sockets.found:
        if socket.fault is None:
            yield ok("plugin", f"the device plugin accepts connections at {socket.path}")
            continue
        # A killed plugin leaves its sockets behind. A socket of a resource that is no longer offered does no harm.
        text = f"the device plugin accepts no connections at {socket.path}: {socket.fault.text}"
        if alive:
            yield warning("plugin", text, "remove the file if that resource is not offered any more")
        else:
            remedy = as_root(socket.fault, "start `autoclave plugin` again, or read its log if it runs")
            yield broken("plugin", text, remedy)


def feature_gates(facts: NodeFacts) -> Iterator[Finding]:
    """The API server keeps what the DRA driver writes."""
    missing = facts.missing_gates
    if missing is None:
        return
    if isinstance(missing, CheckFault):
        remedy = "run it with the credentials and the NODE_NAME of `autoclave dra`, such as in its pod"
        yield warning("feature-gates", f"cannot ask the API server what it keeps of a slice: {missing.text}", remedy)
        return
    for gate, effect in GATES.items():
        if gate in missing:
            text = f"the feature gate {gate} is off: {effect}"
            yield warning("feature-gates", text, f"switch it on; it is on by default since Kubernetes {GATES_SINCE}")
    if not missing:
        yield ok("feature-gates", "the API server keeps all fields of a ResourceSlice that the DRA driver writes")
