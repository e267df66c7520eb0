"""Which credentials are used for the API server, if there are any. Reads files only, and imports no client library."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from plugin.cluster.report_choice import ReportChoice, Reports
from scrub_api.request_limits import is_subdomain


class Unusable(Exception):
    """The plugin cannot make a client; the message says why."""


def find(choice: ReportChoice, environment: Mapping[str, str]) -> Path | None:
    """The credentials to use: the directory of the pod's service account, or a kubeconfig file.

    KUBECONFIG counts only if reports are ``on``, because a user's shell may name another cluster.
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
