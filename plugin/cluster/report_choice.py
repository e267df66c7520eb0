"""What an operator chooses about the reports to the cluster. A pure value, which flags and configurations build."""

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


class NvsentinelAction(Enum):
    """What NVSentinel may do with a report: only keep it, or cordon, drain and repair the node."""

    NONE = "none"
    REMEDIATE = "remediate"


@dataclass(frozen=True, slots=True)
class ReportChoice:
    """The options of the reports."""

    reports: Reports = Reports.AUTO
    node: str = ""
    checkpoint: bool = False  # whether the Node gets the newest signed checkpoint of its ledger as an annotation
    service_account: Path = SERVICE_ACCOUNT  # no flag: Kubernetes mounts it there
    nvsentinel_socket: Path | None = None  # of its platform connector; None: nothing is reported to NVSentinel
    nvsentinel_action: NvsentinelAction = NvsentinelAction.NONE
