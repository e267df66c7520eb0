"""Makes the reporter to the cluster before the plugin serves, if the options and credentials allow reports."""

from __future__ import annotations

import importlib
import os

from plugin.cluster import base, credentials
from plugin.cluster.credentials import ReportChoice, Reports
from plugin.cluster.reporter import ClusterReporter
from plugin.cluster.retry_loop import Pace
from scrubber.ground import log
from scrubber.ground.errors import FatalError

logger = log.get("cluster")

CALL_WITHIN = 5.0  # seconds for a whole call
_CLIENT = "plugin.cluster.apiserver"


def reporter(choice: ReportChoice) -> ClusterReporter | None:
    """A reporter that is ready to run; None without reports or without credentials."""
    if choice.reports is Reports.OFF:
        return None
    found = credentials.find(choice, os.environ)
    try:
        server = _server(choice, found)
    except base.Unusable as error:
        if choice.reports is Reports.ON:
            raise FatalError(f"cannot report to the cluster: {error}") from error
        if found is not None or choice.taint:  # otherwise no option asks for reports
            logger.warning("nothing is reported to the cluster", why=str(error))
        return None
    logger.info("reporting to the cluster", node=choice.node, taint=choice.taint)
    return ClusterReporter(server, choice.node, taint=choice.taint, pace=Pace())


def _server(choice: ReportChoice, found: credentials.Credentials | None) -> base.Server:
    missing = credentials.missing(choice, os.environ)
    if found is None or missing:
        raise base.Unusable(missing)
    return _connect(found, choice.node)


def _connect(found: credentials.Credentials, node: str) -> base.Server:
    # Imported by name: the client library is optional, and a plugin without reports stays small without it. Imported
    # before the plugin serves: the import takes longer than a call of the kubelet should wait.
    try:
        module = importlib.import_module(_CLIENT)
    except Exception as error:  # a broken library must not stop the plugin
        raise base.Unusable(f"the client library cannot be loaded ({error}): install autoclave[cluster]") from error
    server: base.Server = module.connect(found, node, CALL_WITHIN)
    return server
