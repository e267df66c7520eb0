"""Reports the state of this node's devices to the cluster: a condition and Events of the Node, and a taint on request.

The reports go one way: no answer and no failure of the API server changes what the kubelet gets. ``node_report``
decides, ``api_objects`` makes JSON: both are pure. ``reporter`` runs them. ``apiserver`` alone uses HTTP. It is
imported by name, so that a plugin without credentials never loads the client library.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Reports(Enum):
    """Whether the plugin reports its devices to the cluster."""

    OFF = "off"
    AUTO = "auto"
    ON = "on"


@dataclass(frozen=True, slots=True)
class ReportChoice:
    """The options of the reports."""

    reports: Reports = Reports.AUTO
    node: str = ""
    taint: bool = False
    service_account: Path = SERVICE_ACCOUNT  # no flag: Kubernetes mounts it there
