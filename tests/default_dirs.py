"""The default directories of a node, which belong to the machine: a test that uses one of them fails.

A variable for each flag leads nowhere, also in child processes: nothing can be opened under a file.
"""

import os

from ground import paths
from plugin.dra import config

NOWHERE = {
    f"AUTOCLAVE_{name}_DIR": f"{os.devnull}/{name}"
    for name in ("RUN", "STATE", "KUBELET", "POD_LOGS", "CDI", "PLUGINS", "REGISTRY")
}
PLACES = (
    *(paths.RUN_DIR, paths.STATE_DIR, paths.KUBELET_DIR, paths.POD_LOGS_DIR, *paths.CDI_DIRS),
    *(config.PLUGINS_DIR, config.REGISTRY_DIR),
)
