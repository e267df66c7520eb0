"""What is said to the API server, as it is written in JSON. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from plugin.cluster.judging import Code, Condition, bounded
from plugin.cluster.outbox import PendingEvent

CONDITION = "AutoclaveDevicesHealthy"
COMPONENT = "autoclave"
TAINT, EFFECT = "autoclave.dev/no-healthy-devices", "NoSchedule"
NAMESPACE = "default"  # where Events of things without a namespace live


def condition(condition: Condition) -> dict[str, Any]:
    """A strategic merge patch of the node's status: conditions are merged by their type, others stay as they are."""
    return {
        "status": {
            "conditions": [
                {
                    "type": CONDITION,
                    "status": condition.outlook.status.value,
                    "reason": condition.outlook.reason,
                    "message": condition.outlook.message,
                    "lastHeartbeatTime": time(condition.heartbeat),
                    "lastTransitionTime": time(condition.transition),
                }
            ]
        }
    }


def add_taint(version: str, *, others: bool) -> list[dict[str, Any]]:
    """A JSON patch that appends ours. It names no other taint, and holds only for the node as it was read."""
    ours = {"key": TAINT, "effect": EFFECT}
    add = (
        {"op": "add", "path": "/spec/taints/-", "value": ours}
        if others
        else {"op": "add", "path": "/spec/taints", "value": [ours]}
    )
    return [_as_read(version), add]


def remove_taint(version: str, place: int) -> list[dict[str, Any]]:
    """A JSON patch that removes the taint at this place, which must be ours."""
    path = f"/spec/taints/{place}"
    ours = {"op": "test", "path": f"{path}/key", "value": TAINT}
    return [_as_read(version), ours, {"op": "remove", "path": path}]


def event(letter: PendingEvent, node: str, uid: str) -> dict[str, Any]:
    """An Event of the Node."""
    about = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid or node}  # without a UID as the kubelet does
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": letter.name, "namespace": NAMESPACE},
        "involvedObject": about,
        "type": "Normal" if letter.happening.code is Code.RECOVERED else "Warning",
        "reason": letter.happening.code.value,
        "firstTimestamp": time(letter.first),
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
        **again(letter),
    }


def again(letter: PendingEvent) -> dict[str, Any]:
    """What changes of an Event when the same happens again."""
    return {
        "count": letter.count,
        "lastTimestamp": time(letter.last),
        "message": bounded(letter.happening.note),
    }


def time(at: float) -> str:
    """To the second, as the API server keeps it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _as_read(version: str) -> dict[str, Any]:
    return {"op": "test", "path": "/metadata/resourceVersion", "value": version}
