"""Which credentials are used for the API server, if there are any. Reads files only, and imports no client library."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")


class Unusable(Exception):
    """The plugin cannot make a client; the message says why."""


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


def find(choice: ReportChoice, environment: Mapping[str, str]) -> Path | None:
    """The credentials to use: the directory of the pod's service account, or a kubeconfig file.

    KUBECONFIG counts only with reports ``on``: a user's shell may name another cluster.
    """
    service = all(environment.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if service and _may_exist(choice.service_account / "token"):
        return choice.service_account
    named = environment.get("KUBECONFIG", "")
    return Path(named) if named and choice.reports is Reports.ON else None


def _may_exist(token: Path) -> bool:
    """True also for an unreadable directory: the use of the token then fails with an error that says why."""
    try:
        return stat.S_ISREG(token.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def missing(choice: ReportChoice, environment: Mapping[str, str]) -> str:
    """What the operator has to add before reports are possible; empty: nothing."""
    if not choice.node:
        return "the name of the node is unknown: set --node-name, or NODE_NAME from the pod's spec.nodeName"
    if not is_subdomain(choice.node):
        return f"--node-name {choice.node!r}: not a valid name; give the node's name in the cluster, or NODE_NAME"
    if find(choice, environment) is None:
        return (
            f"there are no credentials: mount the token of a service account in {choice.service_account}, "
            "or name a kubeconfig, with --cluster-reports on, in KUBECONFIG"
        )
    return ""


def is_subdomain(name: str, max_length: int = 253) -> bool:
    """Whether the name is a DNS subdomain of at most this length, as Kubernetes checks it (RFC 1123)."""
    return len(name) <= max_length and _SUBDOMAIN.fullmatch(name) is not None
