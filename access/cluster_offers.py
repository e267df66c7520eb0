"""What the flags name must be in the cluster: the node, its resource, the DeviceClass. It is asked before a run.

What the account may not read is not asked: then the scheduler says it of the owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from access.manifest_files import Cluster
from access.pod_states import object_in
from containers.commands import ContainerFailed, asked
from ground.errors import plain

_MOST = 20  # names in a sentence


def expect_offers(cluster: Cluster) -> str:
    """ContainerFailed if the cluster does not have what a flag names.

    Returns why the owner must wait; empty if the node offers enough healthy GPUs, or the account may not ask.
    """
    node = _object("node", cluster.node)
    if cluster.device_class:
        _object("deviceclass", cluster.device_class)
        return ""
    status = node.get("status", {})
    capacity = status.get("capacity", {cluster.resource: "unknown"})  # GPUs in use and scrubbed, too
    has = capacity.get(cluster.resource, "0")
    if has.isdigit() and int(has) < cluster.count:
        offers = [f"{name} ({many})" for name, many in sorted(capacity.items()) if "/" in name]
        choice = f"it has {_listed(offers)}" if offers else "no device plugin has registered a resource there"
        why = f"the node {cluster.node} has {has} of the {cluster.count} {cluster.resource} that the owner asks for"
        raise ContainerFailed(f"{why}; check --resource and --count: {choice}")
    healthy = status.get("allocatable", {}).get(cluster.resource, "unknown")
    if not healthy.isdigit() or int(healthy) >= cluster.count:
        return ""
    why = f"{healthy} of the {has} {cluster.resource} on the node {cluster.node} are healthy, as the kubelet reports it"
    return f"{why}: the others are sick or being scrubbed, or their device plugin does not run"


def _object(kind: str, name: str) -> Mapping[str, Any]:
    """This object; nothing if the account may not read it."""
    done = asked(["kubectl", "get", kind, name, "--output=json"])
    if "(NotFound)" in done.stderr:
        names = asked(["kubectl", "get", kind, "--output=name"]).stdout.split()
        choice = f"it has {_listed([each.partition('/')[2] for each in names])}" if names else "it has none"
        flag = {"node": "--node", "deviceclass": "--device-class"}[kind]
        raise ContainerFailed(f"the cluster has no {kind} {name}; check {flag}: {choice}")
    return object_in(done.stdout)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return plain(", ".join(names[:_MOST])) + more
