"""Checks of the kubelet, its checkpoint and the plugin."""

from __future__ import annotations

from collections.abc import Iterator

from autoclave.doctor import base

GATES = {
    "DRADeviceTaints": "unhealthy devices are left out of the slice, without a reason",
}
"""The feature gates of optional fields of a ResourceSlice, and what the DRA driver does without them."""

GATES_SINCE = "1.36"
OTHER_DIRECTORY = "name the kubelet's directory with --kubelet-dir, or mount it here"


def _kubelet_dir(facts: base.NodeFacts) -> Iterator[base.Finding]:
    it = facts.kubelet_dir
    if it.fault is not None:
        text = f"cannot use the kubelet's directory {it.path}: {it.fault.text}"
        yield base.broken("kubelet-dir", text, base.as_root(it.fault, OTHER_DIRECTORY))
    else:
        yield base.ok("kubelet-dir", f"the kubelet's directory is {it.path}")


def _kubelet(facts: base.NodeFacts) -> Iterator[base.Finding]:
    if facts.kubelet_dir.fault is not None:
        return
    it = facts.kubelet
    if it.fault is None:
        yield base.ok("kubelet", f"the kubelet accepts connections at {it.path}")
        return
    text = f"the kubelet accepts no connections at {it.path}: {it.fault.text}"
    yield base.broken("kubelet", text, base.as_root(it.fault, "start the kubelet, or read its log if it runs"))


def _checkpoint(facts: base.NodeFacts) -> Iterator[base.Finding]:
    if facts.kubelet_dir.fault is not None:
        return
    fault = facts.checkpoint.fault
    if fault is None:
        yield base.ok("checkpoint", "the kubelet's checkpoint can be read: it names the pod of each device")
    elif fault.absent:
        text = "the kubelet has no checkpoint yet; without it, no container starts on a GPU"
        remedy = "start `autoclave plugin`: the kubelet writes it when the first plugin lists its devices"
        yield base.warning("checkpoint", text, remedy)
    else:
        remedy = (
            "if the kubelet was restarted with this checkpoint, drain the node, because the kubelet believes "
            "that every GPU is free; otherwise the kubelet writes a new checkpoint"
        )
        text = fault.text if fault.denied else f"no container starts on a GPU: {fault.text}"
        yield base.broken("checkpoint", text, base.as_root(fault, remedy))


def _double_allocation(facts: base.NodeFacts) -> Iterator[base.Finding]:
    """Two pods on one device: the kubelet can forget an allocation in progress (kubernetes/kubernetes#137534)."""
    if facts.kubelet_dir.fault is not None or facts.checkpoint.fault is not None:
        return
    double = [(device, pods) for device, pods in _ours(facts) if len(pods) > 1]
    for device, pods in sorted(double):
        text = f"the kubelet gave {device} to several pods at once: {', '.join(sorted(pods))}"
        yield base.broken(
            "double-allocation",
            text,
            "if only one of these pods runs, delete the others; if several run, delete all of them",
        )
    if not double:
        yield base.ok("double-allocation", "the kubelet gave no GPU to two pods")


def _ours(facts: base.NodeFacts) -> Iterator[tuple[str, frozenset[str]]]:
    """The entries of our devices, or all entries while our devices are not known. Other resources may share an id."""
    known = None if facts.status is None else {it.device for it in facts.status.devices}
    for device, pods in facts.checkpoint.owners.items():
        if known is None or device in known:
            yield device, pods


def _plugin(facts: base.NodeFacts) -> Iterator[base.Finding]:
    if facts.kubelet_dir.fault is not None:
        return
    it = facts.plugin
    if it.fault is not None and not it.fault.absent:
        text = f"cannot list the sockets in {it.directory}: {it.fault.text}"
        yield base.broken("plugin", text, base.as_root(it.fault, OTHER_DIRECTORY))
        return
    if not it.found:
        text = f"no device plugin serves in {it.directory}: no pod gets a GPU through Autoclave"
        yield base.broken("plugin", text, "start `autoclave plugin`")
        return
    alive = any(socket.fault is None for socket in it.found)
    for socket in it.found:
        yield _endpoint(socket, alive)


def _endpoint(socket: base.Socket, alive: bool) -> base.Finding:  # noqa: FBT001 - one caller
    """A killed plugin leaves its sockets behind. A socket of a resource that is no longer offered does no harm."""
    if socket.fault is None:
        return base.ok("plugin", f"the device plugin accepts connections at {socket.path}")
    text = f"the device plugin accepts no connections at {socket.path}: {socket.fault.text}"
    if alive:
        return base.warning("plugin", text, "remove the file if that resource is not offered any more")
    return base.broken(
        "plugin", text, base.as_root(socket.fault, "start `autoclave plugin` again, or read its log if it runs")
    )


def _feature_gates(facts: base.NodeFacts) -> Iterator[base.Finding]:
    it = facts.slices
    if it is None:
        return
    if it.fault:
        remedy = "run it with the credentials and the NODE_NAME of `autoclave dra`, such as in its pod"
        yield base.warning("feature-gates", f"cannot ask the API server what it keeps of a slice: {it.fault}", remedy)
        return
    for gate, effect in GATES.items():
        if gate in it.missing:
            text = f"the feature gate {gate} is off: {effect}"
            yield base.warning(
                "feature-gates", text, f"switch it on; it is on by default since Kubernetes {GATES_SINCE}"
            )
    if not it.missing:
        yield base.ok("feature-gates", "the API server keeps all fields of a ResourceSlice that the DRA driver writes")


CHECKS = (_kubelet_dir, _kubelet, _checkpoint, _double_allocation, _plugin, _feature_gates)
