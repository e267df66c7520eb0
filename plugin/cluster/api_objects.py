"""The JSON of a Node's condition, an Event and a time for the API server. Pure."""

from __future__ import annotations

from typing import Any

from ground import calendar_time, public_names
from plugin.cluster.node_report import Condition, EventReason, PendingEvent, bounded

CONDITION = "AutoclaveDevicesHealthy"
COMPONENT = "autoclave"
NAMESPACE = "default"  # of Events about objects without a namespace


def condition(condition: Condition, checkpoint: str = "") -> dict[str, Any]:
    """A strategic merge patch of the Node's status: it changes only the condition of our type.

    ``checkpoint``: the annotation to set with it; empty for none. The API server accepts annotations with a status.
    """
    return ({"metadata": {"annotations": {public_names.CHECKPOINT: checkpoint}}} if checkpoint else {}) | {
        "status": {
            "conditions": [
                {
                    "type": CONDITION,
                    "status": condition.content.status.value,
                    "reason": condition.content.reason,
                    "message": condition.content.message,
                    "lastHeartbeatTime": time(condition.heartbeat),
                    "lastTransitionTime": time(condition.transition),
                }
            ]
        }
    }


def event(pending: PendingEvent, node: str, uid: str) -> dict[str, Any]:
    """An Event of the Node."""
    involved = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node,
        "uid": uid or node,
    }  # as the kubelet does
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": pending.name, "namespace": NAMESPACE},
        "involvedObject": involved,
        "type": "Normal" if pending.event.reason is EventReason.RECOVERED else "Warning",
        "reason": pending.event.reason.value,
        "message": bounded(pending.event.note),
        "count": 1,
        "firstTimestamp": time(pending.at),
        "lastTimestamp": time(pending.at),
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
    }


def time(at: float) -> str:
    """A time with seconds, as the API server stores it."""
    return calendar_time.utc(at).strftime("%Y-%m-%dT%H:%M:%SZ")
