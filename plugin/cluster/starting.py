"""Whether there will be reports to the cluster, decided before anything runs."""

from __future__ import annotations

import importlib
import os

import structlog

from plugin.cluster import base, credentials
from plugin.cluster.credentials import ReportChoice, Reports
from plugin.cluster.reporter import ClusterReporter
from plugin.cluster.retry_loop import Pace
from scrubber.ground.errors import FatalError

logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(room="cluster")

CALL_WITHIN = 5.0  # seconds for a call as a whole
_CLIENT = "plugin.cluster.apiserver"


def reporter(asked: ReportChoice) -> ClusterReporter | None:
    """One that is ready to run; None where nothing is to be told, or nobody is there to tell."""
    if asked.reports is Reports.OFF:
        return None
    found = credentials.find(asked, os.environ)
    try:
        server = _server(asked, found)
    except base.Unusable as error:
        if asked.reports is Reports.ON:
            raise FatalError(f"cannot report to the cluster: {error}") from error
        if found is not None or asked.taint:  # otherwise nobody asked: not every node is one of a cluster
            logger.warning("nothing is reported to the cluster", why=str(error))
        return None
    logger.info("reporting to the cluster", node=asked.node, taint=asked.taint)
    return ClusterReporter(server, asked.node, taint=asked.taint, pace=Pace())


def _server(asked: ReportChoice, found: credentials.Credentials | None) -> base.Server:
    lacking = credentials.lacking(asked, os.environ)
    if found is None or lacking:
        raise base.Unusable(lacking)
    return _connect(found, asked.node)


def _connect(found: credentials.Credentials, node: str) -> base.Server:
    # By name: the client is an extra that need not be installed, and a plugin that does not report stays small
    # without it. It is loaded before anything is served, as it takes longer than a hook should wait.
    try:
        module = importlib.import_module(_CLIENT)
    except Exception as error:  # whatever a library does while it is loaded, the kubelet is served
        raise base.Unusable(f"its client cannot be loaded ({error}): install autoclave[cluster]") from error
    server: base.Server = module.connect(found, node, CALL_WITHIN)
    return server
