"""``autoclave scrubber``: run the service until it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import scrubber.cli.log_without_rich  # noqa: F401 - must be loaded before any module that loads structlog

# isort: split
from scrubber import config, daemon
from scrubber.cli import options
from scrubber.ground import paths


def _flag(name: str, **about: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:  # noqa: ANN401 - click's own
    """A flag without its variable: ``config`` reads the environment, as it must know where each value came from."""
    return click.option(name, allow_from_autoenv=False, **about)


@click.command(context_settings=options.ENVIRONMENT)
@_flag("--backend", type=click.Choice([it.value for it in config.BackendChoice]), help="Which GPUs.")
@_flag("--policy", metavar="NAME|FILE", help="What to demand of a GPU [default: default].")
@_flag("--state-dir", metavar="DIR", help=f"Where the ledger lives [default: {paths.STATE_DIR}].")
@_flag("--run-dir", metavar="DIR", help=f"Where to make the sockets [default: {paths.RUN_DIR}].")
@_flag("--kubelet-dir", metavar="DIR", help=f"The kubelet's [default: {paths.KUBELET_DIR}].")
@_flag("--pod-logs-dir", metavar="DIR", help=f"Its podLogsDir, to name pods by [default: {paths.POD_LOGS_DIR}].")
@_flag("--host-root", metavar="DIR", help="Where the host's /dev, /proc/driver, /sys and /var are [default: /].")
@_flag(
    "--sight",
    type=click.Choice([it.value for it in config.SightMode]),
    help="Where all processes must be seen; namespace is for nodes that are containers [default: host].",
)
@_flag("--simulated-dir", metavar="DIR", help="Simulated GPUs [default: STATE-DIR/simulated].")
@_flag("--simulated-gpus", type=int, metavar="N", help="How many simulated GPUs [default: 2].")
@_flag("--simulated-memory", metavar="SIZE", help="Memory of a new one [default: 64MiB].")
@_flag(
    "--metrics-address", metavar="HOST:PORT", help="Where to show /metrics, /healthz and /readyz [default: nowhere]."
)
@_flag("--log-level", type=click.Choice([it.value for it in config.LogLevel]), help="From which on [default: info].")
@_flag(
    "--log-format",
    type=click.Choice([it.value for it in config.LogFormat]),
    help="How log lines look; auto is console on a terminal, json elsewhere.",
)
@click.option(
    "--config", "file", envvar="AUTOCLAVE_CONFIG", metavar="FILE", type=click.Path(path_type=Path),
    help="A YAML file with any of these flags as keys; the environment and flags win over it.",
)  # fmt: skip
def command(file: Path | None, **flags: str | int | None) -> int:
    """Run the scrub service of this node.

    It keeps serving until SIGTERM or SIGINT; SIGHUP loads the policy again. Logs go to stderr.
    """
    return daemon.run(config.resolve(file, os.environ, flags).config)
