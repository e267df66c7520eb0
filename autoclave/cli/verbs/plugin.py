"""``autoclave plugin``: run the device plugin of this node until a signal stops it.

The plugin must stay small, so this module imports no configuration model and no YAML.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import click

from autoclave.cli import ENVIRONMENT, Parsed, options
from ground import log, paths
from plugin import config, plugin_process, response
from plugin.cluster.report_choice import ReportChoice, Reports
from plugin.devices import MigStrategy
from scrubber import __version__


def _strategies(text: str) -> tuple[response.Strategy, ...]:
    """One or more strategies. The flag can be repeated, and one value can list several, separated by commas."""
    try:
        return response.strategies(re.split(r"[\s,]+", text.strip()))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(context_settings=ENVIRONMENT)
@options.path("--kubelet-dir", paths.KUBELET_DIR, "Directory with kubelet.sock.")
@options.service_dir
@click.option("--resource-prefix", default=config.PREFIX, metavar="DOMAIN", help="Prefix of resource names.")
@click.option(
    "--strategy",
    type=Parsed("strategy", _strategies),
    multiple=True,
    default=["cdi-cri"],
    metavar="|".join(strategy.value for strategy in response.Strategy),
    help="How containers get their devices; several are separated by commas.",
)
@options.cdi_kind
@click.option("--pass-device-specs", is_flag=True, help="Also list the device nodes, for runtimes without CDI.")
@options.path("--driver-root", "/", "The host directory with the driver's device nodes.")
@click.option("--mig-strategy", type=options.Words(MigStrategy), default="none", help="How MIG devices are offered.")
@click.option(
    "--cluster-reports",
    type=options.Words(Reports),
    default="auto",
    help="Report device health to Kubernetes; auto does so when a service account and the node's name exist.",
)
@click.option(
    "--checkpoint-annotation",
    is_flag=True,
    help="With each report, keep the newest signed checkpoint of the ledger as an annotation of the Node.",
)
@options.node_name
@options.nvsentinel_socket
@options.nvsentinel_action
@options.path(
    "--vendor-dir",
    None,
    "Stand in front of a vendor's device plugin, which registers at kubelet.sock in this directory.",
)
@options.cdi_dir
@click.option(
    "--vendor-variable",
    metavar="NAME",
    multiple=True,
    help="Let answers of the vendor's plugin set this variable, which is refused otherwise; may be repeated.",
)
@click.option(
    "--standby",
    is_flag=True,
    help="If another plugin runs on this node, wait, and take its place when it ends.",
)
@options.metrics_address
@options.log_level
@options.log_format
@options.file
def plugin(**flags: Any) -> int:  # noqa: ANN401 - click has made each what its flag says
    """Run the device plugin of this node.

    Offers the GPUs of the scrub service to the kubelet, and asks that service before a pod gets a GPU. With
    --vendor-dir, the device plugin of a vendor offers the GPUs and prepares the containers, and this program holds back
    each pod until its GPUs are proven clean. Runs until SIGTERM or SIGINT. Logs go to stderr.
    """
    chosen = config.Config(
        kubelet_dir=flags["kubelet_dir"],
        run_dir=flags["run_dir"],
        resource_prefix=flags["resource_prefix"],
        style=response.Style(
            strategies=tuple(dict.fromkeys(chain(*flags["strategy"]))),
            cdi_kind=flags["cdi_kind"],
            pass_device_specs=flags["pass_device_specs"],
            dev_root=str(flags["driver_root"]),
        ),
        mig_strategy=flags["mig_strategy"],
        cluster=ReportChoice(
            flags["cluster_reports"],
            flags["node_name"],
            flags["checkpoint_annotation"],
            nvsentinel_socket=flags["nvsentinel_socket"],
            nvsentinel_action=flags["nvsentinel_action"],
        ),
        vendor_dir=flags["vendor_dir"],
        cdi_dirs=flags["cdi_dir"],
        vendor_variables=flags["vendor_variable"],
        standby=flags["standby"],
        metrics_address=flags["metrics_address"],
        version=__version__,
        log_level=flags["log_level"],
        log_format=flags["log_format"],
    )
    log.configure(chosen.log_level, json=None if chosen.log_format == "auto" else chosen.log_format == "json")
    return plugin_process.run(chosen)
