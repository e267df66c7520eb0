"""Whether there is an API server to speak to, and as whom. Looks only; imports nothing that costs anything."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LONGEST_NAME = 253
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class Reports(Enum):
    """Whether the cluster is told of the devices."""

    OFF = "off"
    AUTO = "auto"
    ON = "on"


@dataclass(frozen=True, slots=True)
class InCluster:
    """The service account of our pod."""

    directory: Path


@dataclass(frozen=True, slots=True)
class File:
    """A kubeconfig that somebody named."""

    path: Path


Credentials = InCluster | File


@dataclass(frozen=True, slots=True)
class ReportChoice:
    """What was asked for."""

    reports: Reports
    node: str
    taint: bool
    service_account: Path = SERVICE_ACCOUNT


def find(asked: ReportChoice, environment: Mapping[str, str]) -> Credentials | None:
    """Those to use. A kubeconfig counts only for who asked: one in a person's shell says nothing of this node."""
    service = all(environment.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if service and _may_be_there(asked.service_account / "token"):
        return InCluster(asked.service_account)
    named = environment.get("KUBECONFIG", "")
    return File(Path(named)) if named and asked.reports is Reports.ON else None


def _may_be_there(token: Path) -> bool:
    """A place that cannot be looked into counts: who tries to use it is told why that fails."""
    try:
        return stat.S_ISREG(token.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def lacking(asked: ReportChoice, environment: Mapping[str, str]) -> str:
    """What to mend before anything can be told; empty: nothing."""
    if not asked.node:
        return "the name of the node is not known: give --node-name, or NODE_NAME from the pod's spec.nodeName"
    if not is_name(asked.node):
        return f"--node-name {asked.node!r}: no node is called that; give the name in the cluster, or NODE_NAME with it"
    if find(asked, environment) is None:
        return (
            f"there are no credentials: mount the token of a service account in {asked.service_account}, "
            "or name a kubeconfig, with --cluster-reports on, in KUBECONFIG"
        )
    return ""


def is_name(node: str) -> bool:
    """Whether a node may be called that; it becomes a part of URLs."""
    return len(node) <= LONGEST_NAME and _NAME.fullmatch(node) is not None
