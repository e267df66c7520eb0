"""``autoclave scrubber``: run the scrub service until a signal stops it."""

from __future__ import annotations

import os
from typing import Any

import click

from autoclave.cli import DURATION, ENVIRONMENT, Parsed, options
from ground import paths, unix_sockets
from ground.documents import units
from ground.quantities import quantity
from policies.policy_model import check_namespace, check_unit
from policies.values import FenceMode
from scrub_api import request_limits
from scrubber import config, daemon

MIN_MEMORY, MAX_MEMORY = 4096, 2**40


class _RunDir(options.AbsolutePath):
    """A directory whose sockets have a path that the kernel takes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        path = super().convert(value, param, ctx)
        surplus = len(os.fsencode(paths.scrubber_socket(path))) - unix_sockets.MAX_PATH_BYTES
        if surplus > 0:
            room = f"room for scrubber.sock in the {unix_sockets.MAX_PATH_BYTES} bytes of a socket's path"
            self.fail(
                f"the path is too long by {quantity(surplus, 'byte')}, expected one that leaves {room}", param, ctx
            )
        return path


def _policy(text: str) -> str:
    if not text:
        raise ValueError("the name of a shipped policy, or a file")
    return text


def _memory(text: str) -> int:
    size = units.parse_size(text)
    if not MIN_MEMORY <= size <= MAX_MEMORY:
        raise ValueError("between 4KiB and 1TiB")
    return size


@click.command(context_settings=ENVIRONMENT)
@click.option("--backend", type=options.Words(config.BackendChoice), default="auto", help="Which kind of GPUs.")
@click.option(
    "--policy",
    type=Parsed("text", _policy),
    default="default",
    metavar="NAME|FILE",
    shell_complete=options.complete_policies,
    help="The policy.",
)
@options.path("--state-dir", paths.STATE_DIR, "Directory for the ledger.")
@click.option("--run-dir", type=_RunDir(), default=paths.RUN_DIR, help="Directory for the sockets.")
@options.path("--kubelet-dir", paths.KUBELET_DIR, "The kubelet's device plugin directory.")
@options.path("--pod-logs-dir", paths.POD_LOGS_DIR, "The kubelet's podLogsDir, for the names of pods.")
@click.option(
    "--operator-namespace",
    type=Parsed("namespace", check_namespace),
    multiple=True,
    metavar="NAMESPACE",
    help="A namespace of NVIDIA's operator or drivers, beside those of the policy; may be repeated.",
)
@click.option(
    "--fence",
    type=options.Words(FenceMode),
    show_default="as the policy says",
    help="Who cannot open a GPU that they were not given: pods (hold), all (refuse), nobody (watch, off).",
)
@click.option(
    "--exempt-unit",
    type=Parsed("unit", check_unit),
    multiple=True,
    metavar="UNIT",
    help="A unit of systemd that may open each GPU, beside those of the policy; may be repeated.",
)
@options.path("--host-root", "/", "Where the host's /dev, /proc/driver, /sys and /var are.")
@click.option(
    "--sight",
    type=options.Words(config.SightMode),
    default="host",
    help="The PID namespace that must show all processes; namespace is for nodes that are containers.",
)
@options.cgroup_root
@click.option(
    "--evidence-rows", type=options.IntRange(0), default=240_000, metavar="N",
    help="How many events of the ledger to keep beside those of the latest scrubs.",
)  # fmt: skip
@click.option(
    "--evidence-age", type=DURATION, default="400d",
    help="How long to keep them.",
)  # fmt: skip
@click.option(
    "--simulated-dir", type=options.PATH, show_default="STATE-DIR/simulated", help="Directory with simulated GPUs."
)
@click.option(
    "--simulated-gpus",
    type=options.IntRange(1, request_limits.MOST_DEVICES),
    default=2,
    metavar="N",
    help="How many simulated GPUs.",
)
@click.option(
    "--simulated-memory",
    type=Parsed("size", _memory),
    default="64MiB",
    metavar="SIZE",
    help="Memory of a new simulated GPU.",
)
@click.option(
    "--simulated-cdi-dir",
    type=options.PATH,
    show_default="none",
    help="Write a CDI specification of the simulated GPUs there, so that pods can open them.",
)
@click.option(
    "--standby",
    is_flag=True,
    help="If another scrub service runs in the run directory, wait until it stops, and then serve at once.",
)
@options.node_name
@options.metrics_address
@options.log_level
@options.log_format
@options.file
def scrubber(**flags: Any) -> int:  # noqa: ANN401 - click has made each what its flag says
    """Run the scrub service of this node.

    Runs until SIGTERM or SIGINT; SIGHUP reloads the policy. Logs go to stderr.
    """
    return daemon.run(config.ScrubberConfig(**flags))
