"""Which control groups hold pods alone: a process of one of these was in a pod, also when the pod itself is gone."""

from __future__ import annotations

import re

PODS = "kubepods"
GONE = "a pod that is gone"
_IN_SLICES = r"(?:/[^/]+[.]slice)*"
# A slice of pods by the driver systemd; the group by the driver cgroupfs, also below a root of the kubelet's own
_ROOT = r"(?:(?![^/]+[.](?:service|scope)/)[^/]+/)?"
_ALL_PODS = re.compile(rf"{_IN_SLICES}/(?:[^/]*{PODS}[^/]*[.]slice|{_ROOT}{PODS})(?:/|$)")


def holds_pods(path: str) -> bool:
    """Whether all pods of the node are below this group, or at a place below that one. ``path``: from the root."""
    return _ALL_PODS.match(path) is not None
