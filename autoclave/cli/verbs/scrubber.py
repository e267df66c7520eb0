"""``autoclave scrubber``: run the scrub service until a signal stops it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from autoclave.cli import ENVIRONMENT, options
from scrubber import config, daemon
from scrubber.ground import paths


def _flag(name: str, **about: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:  # noqa: ANN401 - click's own
    """A flag that click does not read from the environment: ``config`` does, to know where each value came from."""
    return click.option(name, allow_from_autoenv=False, **about)


@click.command(context_settings=ENVIRONMENT)
@_flag("--backend", type=click.Choice([it.value for it in config.BackendChoice]), help="Which kind of GPUs.")
@_flag(
    "--policy",
    metavar="NAME|FILE",
    shell_complete=options.complete_policies,
    help="The policy [default: default].",
)
@_flag("--state-dir", metavar="DIR", help=f"Directory for the ledger [default: {paths.STATE_DIR}].")
@_flag("--run-dir", metavar="DIR", help=f"Directory for the sockets [default: {paths.RUN_DIR}].")
@_flag("--kubelet-dir", metavar="DIR", help=f"The kubelet's device plugin directory [default: {paths.KUBELET_DIR}].")
@_flag(
    "--pod-logs-dir",
    metavar="DIR",
    help=f"The kubelet's podLogsDir, for the names of pods [default: {paths.POD_LOGS_DIR}].",
)
@_flag("--host-root", metavar="DIR", help="Where the host's /dev, /proc/driver, /sys and /var are [default: /].")
@_flag(
    "--sight",
    type=click.Choice([it.value for it in config.SightMode]),
    help="The PID namespace that must show all processes; namespace is for nodes that are containers [default: host].",
)
@_flag("--simulated-dir", metavar="DIR", help="Directory with simulated GPUs [default: STATE-DIR/simulated].")
@_flag("--simulated-gpus", type=int, metavar="N", help="How many simulated GPUs [default: 2].")
@_flag("--simulated-memory", metavar="SIZE", help="Memory of a new simulated GPU [default: 64MiB].")
@_flag(
    "--simulated-cdi-dir",
    metavar="DIR",
    help="Write a CDI specification of the simulated GPUs there, so that pods can open them [default: none].",
)
@_flag("--metrics-address", metavar="HOST:PORT", help="Address for /metrics, /healthz and /readyz [default: none].")
@_flag(
    "--log-level",
    type=click.Choice([it.value for it in config.LogLevel]),
    help="The lowest level to log [default: info].",
)
@_flag(
    "--log-format",
    type=click.Choice([it.value for it in config.LogFormat]),
    help="Format of log lines; auto is console on a terminal, json elsewhere.",
)
@click.option(
    "--config", "file", envvar="AUTOCLAVE_CONFIG", metavar="FILE", type=click.Path(path_type=Path),
    help="A YAML file with any of these flags as keys; the environment and flags override it.",
)  # fmt: skip
def command(file: Path | None, **flags: str | int | None) -> int:
    """Run the scrub service of this node.

    Runs until SIGTERM or SIGINT; SIGHUP reloads the policy. Logs go to stderr.
    """
    return daemon.run(config.resolve(file, os.environ, flags))
