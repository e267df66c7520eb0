"""``autoclave dra``: run the DRA driver of this node until a signal stops it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import click

from autoclave.cli import ENVIRONMENT, options
from ground import log
from plugin.cluster.report_choice import NvsentinelAction, ReportChoice, Reports
from plugin.dra import config, driver_process
from scrubber import __version__


@click.command(context_settings=ENVIRONMENT)
@click.option(
    "--driver-name",
    default="",
    show_default=f"{config.DRIVER}, or {config.VENDOR_DRIVER} with --vendor-registry-dir",
    metavar="DOMAIN",
    help="Name of the driver in ResourceClaims.",
)
@options.path(
    "--vendor-registry-dir",
    None,
    "Stand in front of another vendor's driver, which registers in this directory instead of the kubelet's.",
)
@click.option(
    "--taint-rules",
    is_flag=True,
    help="With --vendor-registry-dir: keep the scheduler away from quarantined devices, by a DeviceTaintRule for each."
    " It needs Kubernetes 1.37 and further rights.",
)
@options.cdi_dir
@options.node_name
@options.nvsentinel_socket
@options.nvsentinel_action
@options.service_dir
@options.path("--plugins-dir", config.PLUGINS_DIR, "The kubelet's directory of plugins.")
@options.path("--registry-dir", config.REGISTRY_DIR, "The kubelet's plugin registry.")
@options.cdi_kind
@click.option(
    "--clean-within",
    type=click.FloatRange(min=0, max=40),
    default=30.0,
    metavar="SECONDS",
    help="How long a claim keeps its devices at its end, until they are clean again.",
)
@options.metrics_address
@options.log_level
@options.log_format
def dra(
    driver_name: str, node_name: str, cdi_dir: tuple[Path, ...], nvsentinel_socket: Path | None,
    nvsentinel_action: NvsentinelAction, **flags: Any,  # noqa: ANN401 - click has made each what its flag says
) -> int:  # fmt: skip
    """Run the DRA driver of this node.

    Offers the GPUs of the scrub service to ResourceClaims. A claim gets GPUs that are proven clean, and keeps them at
    its end until they are clean again. With --vendor-registry-dir, the driver of another vendor offers the GPUs and
    prepares the containers, and this program holds back each claim until its GPUs are proven clean. Needs Kubernetes
    1.34, and credentials for the API server: a service account, or a file that KUBECONFIG names. Do not run it beside
    `autoclave plugin` on one node. Logs go to stderr.
    """
    chosen = config.DraConfig(
        driver=driver_name or (config.VENDOR_DRIVER if flags["vendor_registry_dir"] else config.DRIVER),
        cdi_dirs=cdi_dir,
        cluster=ReportChoice(
            Reports.ON, node_name, nvsentinel_socket=nvsentinel_socket, nvsentinel_action=nvsentinel_action
        ),
        version=__version__,
        instance=secrets.token_hex(4),
        **flags,
    )
    log.configure(chosen.log_level, json=None if chosen.log_format == "auto" else chosen.log_format == "json")
    return driver_process.run(chosen)
