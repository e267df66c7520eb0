"""Checks of the kubelet, its checkpoint and the plugin."""

from __future__ import annotations

from collections.abc import Iterator

from autoclave.doctor.facts import kubelet_facts, service_facts
from autoclave.doctor.finding import Finding, as_root, broken, check, ok, warning
from autoclave.doctor.node_facts import CheckFault, Node

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
        remedy = "start `autoclave plugin`, or read its log if it runs"
        if front := kubelet_facts.in_front(node):  # so `autoclave plugin` runs, and serves what registers with it
            text += f", because no plugin of a vendor has registered at {front}"
            remedy = f"set KUBELET_SOCKET of NVIDIA's plugin to {front}; if it is set, read the logs of both plugins"
        yield broken(text, remedy)
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
