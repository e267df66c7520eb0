"""Checks of the create gate, the kubelet, its checkpoint and the plugin."""

from __future__ import annotations

from collections.abc import Iterator

from autoclave.doctor.facts import create_gate, kubelet_facts, service_facts
from autoclave.doctor.facts.posture import guards_nvidia
from autoclave.doctor.finding import Finding, as_root, broken, check, check_of_service, ok, unseen, warning
from autoclave.doctor.node_facts import CheckFault, CreateGateFacts, Node
from ground import errors
from ground.quantities import quantity
from policies.policy_model import FenceMode, GateMode
from scrub_api import views
from scrubber.core import gate_in_force
from scrubber.core.model import State

INSTALLS = "the service installs it when it starts"
RESTARTED = "if the container runtime was restarted since, start a new pod on the GPU"
SWITCH_ON = (
    "switch CDI on in the container runtime (containerd 1.7: enable_cdi = true in /etc/containerd/config.toml; 2.0 and "
    "later have it on), and let it read the directory of --gate-cdi-dir"
)
FENCED = "correct what the finding `fence` names, or choose another `gate` in the policy"
HOLDING = (FenceMode.HOLD.value, FenceMode.REFUSE.value)
ON_SIMULATED = (
    "run the service as root with --cgroup-root, which needs version 2 of control groups, or choose another `gate`"
)

GATES = {
    "DRADeviceTaints": "unhealthy devices are left out of the slice, without a reason",
}
"""The feature gates of optional fields of a ResourceSlice, and what the DRA driver does without them."""

GATES_SINCE = "1.36"
WITH_CREDENTIALS = "run it with the credentials and the NODE_NAME of `autoclave dra`, such as in its pod"
OTHER_DIRECTORY = (
    "name the kubelet's directory with --kubelet-dir, or mount it here; on a node without Kubernetes, run `autoclave"
    " doctor --without-kubernetes`"
)


@check_of_service("create-gate", of_kubernetes=True)
def gate(node: Node, status: views.Status) -> Iterator[Finding]:
    """The container runtime asks before it creates a container with a GPU."""
    file = status.service.gate_specification
    if not file:
        yield ok("the create gate is off")
    else:
        facts = create_gate.gate(node, file)
        if facts.without_cdi:  # first: the container runtime may read it at its next start
            text = f"{facts.without_cdi} has enable_cdi = false: the container runtime does not ask the create gate"
            yield warning(text, SWITCH_ON)
        faults = tuple(_faults(facts, status))
        yield from faults or (_in_force(status, service_facts.now(node)),)


@check_of_service("prestart-gate", of_kubernetes=True)
def prestart(node: Node, status: views.Status) -> Iterator[Finding]:
    """The fence holds back the containers for which PreStartContainer waits."""
    usable = [device for device in status.devices if device.quarantine is None]
    waiting = [device for device in usable if device.policy_gate == GateMode.PRESTART.value]
    not_held = ", ".join(device.device for device in waiting if device.fence not in HOLDING)
    if not_held:
        text = f"`gate: prestart` acts as `gate: allocate` on GPU {not_held}, so pods fail instead of waiting: no fence"
        yield warning(f"{text} holds pods there", FENCED if guards_nvidia(node) else ON_SIMULATED)
    elif waiting:
        yield ok(f"`gate: prestart` lets pods wait for {quantity(len(waiting), 'GPU')}")
    else:
        yield ok("no pod waits by `gate: prestart`: the policy does not ask for it")


def _faults(gate: CreateGateFacts, status: views.Status) -> Iterator[Finding]:
    """Why containers with GPUs are not created, or are created without a question."""
    file = status.service.gate_specification
    if isinstance(gate.covered, CheckFault):
        yield unseen(f"cannot use {file}", gate.covered, f"{errors.restart(on_kubernetes=True)}; {INSTALLS}")
        return
    if missing := sorted({device.device for device in status.devices} - gate.covered):
        yield broken(f"{file} does not name {', '.join(missing)}", f"{errors.restart(on_kubernetes=True)}; {INSTALLS}")
    for program, fault in gate.programs.items():
        if fault is not None:
            text = f"no container with a GPU is created, because {program} does not run"
            remedy = (
                f"{errors.restart(on_kubernetes=True)}; {INSTALLS}; or choose a --state-dir that is not mounted noexec"
            )
            yield unseen(text, fault, remedy)
    for path, fault in gate.sockets.items():
        if fault is not None:
            text = f"no container with a GPU is created, because there is no answer at {path}"
            yield unseen(text, fault, errors.restart(on_kubernetes=True))


def _in_force(status: views.Status, now: float) -> Finding:
    """Whether the container runtime asks. Before the first container with a GPU nobody can know.

    A restart of the runtime ends what is known, also while containers run that have passed the gate.
    """
    here, since = set(status.service.gate_in_force), max(status.service.started, now - gate_in_force.LASTS)
    used = [device.name for device in status.devices if device.state == State.IN_USE.value and device.since > since]
    unasked = [device.name for device in status.devices if device.name in used and device.device not in here]
    if unasked:
        text = f"GPU {', '.join(unasked)} is in use, and the create gate is not in force on it"
        return warning(text, f"{RESTARTED}; otherwise {SWITCH_ON}")
    if here:
        count = f"{len(here)} of {quantity(len(status.devices), 'GPU')}"
        return ok(f"the create gate is in force on {count}: the container runtime asks")
    return ok("the create gate is installed, and comes into force with the first container that gets a GPU")


@check("kubelet-dir", of_kubernetes=True)
def kubelet_dir(node: Node) -> Iterator[Finding]:
    """The kubelet's directory can be used."""
    directory = kubelet_facts.kubelet_dir(node)
    if directory.fault is not None:
        text = f"cannot use the kubelet's directory {directory.path}: {directory.fault.text}"
        yield broken(text, as_root(directory.fault, OTHER_DIRECTORY))
    else:
        yield ok(f"the kubelet's directory is {directory.path}")


@check("kubelet", kubelet_facts.has_kubelet_dir, of_kubernetes=True)
def kubelet(node: Node) -> Iterator[Finding]:
    """The kubelet accepts connections."""
    socket = kubelet_facts.kubelet(node)
    if socket.fault is None:
        yield ok(f"the kubelet accepts connections at {socket.path}")
        return
    text = f"the kubelet accepts no connections at {socket.path}: {socket.fault.text}"
    yield broken(text, as_root(socket.fault, "start the kubelet, or read its log if it runs"))


@check("checkpoint", kubelet_facts.has_kubelet_dir, of_kubernetes=True)
def checkpoint(node: Node) -> Iterator[Finding]:
    """The kubelet's checkpoint can be read."""
    fault = kubelet_facts.checkpoint(node)
    if not isinstance(fault, CheckFault):
        yield ok("the kubelet's checkpoint can be read: it names the pod of each device")
    elif fault.absent:
        text = "the kubelet has no checkpoint yet; without it, no container starts on a GPU"
        yield warning(text, "start `autoclave plugin`: the kubelet writes it when the first plugin lists its devices")
    else:
        remedy = (
            "if the kubelet was restarted with this checkpoint, drain the node, because the kubelet believes "
            "that every GPU is free; otherwise the kubelet writes a new checkpoint"
        )
        text = fault.text if fault.denied else f"no container starts on a GPU: {fault.text}"
        yield broken(text, as_root(fault, remedy))


@check("double-allocation", kubelet_facts.has_kubelet_dir, of_kubernetes=True)
def double_allocation(node: Node) -> Iterator[Finding]:
    """Two pods on one device: the kubelet can forget an allocation in progress (kubernetes/kubernetes#137534)."""
    status, pods_by_device = service_facts.status(node), kubelet_facts.checkpoint(node)
    if isinstance(pods_by_device, CheckFault):
        return
    # Other resources may share an id. While our devices are not known, all entries count.
    ours = pods_by_device.keys() if status is None else {device.device for device in status.devices}
    double = [(device, pods) for device, pods in pods_by_device.items() if device in ours and len(pods) > 1]
    for device, pods in sorted(double):
        text = f"the kubelet gave {device} to several pods at once: {', '.join(sorted(pods))}"
        yield broken(text, "if only one of these pods runs, delete the others; if several run, delete all of them")
    if not double:
        yield ok("the kubelet gave no GPU to two pods")


@check("plugin", kubelet_facts.has_kubelet_dir, of_kubernetes=True)
def plugin(node: Node) -> Iterator[Finding]:
    """A device plugin of ours serves."""
    sockets = kubelet_facts.plugin(node)
    if sockets.fault is not None and not sockets.fault.absent:
        text = f"cannot list the sockets in {sockets.directory}: {sockets.fault.text}"
        yield broken(text, as_root(sockets.fault, OTHER_DIRECTORY))
        return
    if not sockets.found:
        text = f"no device plugin serves in {sockets.directory}: no pod gets a GPU through Autoclave"
        yield broken(text, "start `autoclave plugin`, or read its log if it runs")
        return
    alive = any(socket.fault is None for socket in sockets.found)
    for socket in sockets.found:
        if socket.fault is None:
            yield ok(f"the device plugin accepts connections at {socket.path}")
            continue
        # A killed plugin leaves its sockets behind. A socket of a resource that is no longer offered does no harm.
        text = f"the device plugin accepts no connections at {socket.path}: {socket.fault.text}"
        if alive:
            yield warning(text, "remove the file if that resource is not offered any more")
        else:
            yield broken(text, as_root(socket.fault, "start `autoclave plugin` again, or read its log if it runs"))


@check("feature-gates", of_kubernetes=True)
def feature_gates(node: Node) -> Iterator[Finding]:
    """The API server keeps what the DRA driver writes."""
    missing = kubelet_facts.missing_gates(node)
    if missing is None:
        return
    if isinstance(missing, CheckFault):
        yield warning(f"cannot ask the API server what it keeps of a slice: {missing.text}", WITH_CREDENTIALS)
        return
    for gate, effect in GATES.items():
        if gate in missing:
            text = f"the feature gate {gate} is off: {effect}"
            yield warning(text, f"switch it on; it is on by default since Kubernetes {GATES_SINCE}")
    if not missing:
        yield ok("the API server keeps all fields of a ResourceSlice that the DRA driver writes")


@check("claims", of_kubernetes=True)
def claims(node: Node) -> Iterator[Finding]:
    """The kubelet asks the DRA driver before a pod gets a device of a claim."""
    unprepared = kubelet_facts.unprepared_slices(node)
    if unprepared is None:
        return
    if isinstance(unprepared, CheckFault):
        yield warning(f"cannot ask the API server for the slices of the driver: {unprepared.text}", WITH_CREDENTIALS)
        return
    for name in unprepared:
        text = f"nothing is proven of the devices of the ResourceSlice {name}: the kubelet asks no driver for them"
        yield broken(text, "take skipNodeOperations out of the slice, or find out who has written it")
    if not unprepared:
        yield ok("the kubelet asks the DRA driver before a pod gets a device of a claim")
