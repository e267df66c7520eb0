"""``autoclave receipt``: the proofs of this node's GPUs, for people who do not trust the node's word alone."""

from __future__ import annotations

import importlib
import platform
from pathlib import Path

import click

from autoclave.cli import ENVIRONMENT, Parsed, human, options


@click.group()
def receipt() -> None:
    """List the hand-overs of GPUs with their receipts."""


@receipt.command("list", context_settings=ENVIRONMENT)
@click.argument("gpu", required=False, default="", shell_complete=options.complete_gpus)
@click.option(
    "--since", type=Parsed("time", human.since), default="30d",
    help="Hand-overs that began since then: 30d (ago), 2026-11-20 09:00 (local), or RFC 3339.",
)  # fmt: skip
@click.option(
    "--until", type=Parsed("time", human.since), default=0.0, show_default=False,
    help="Hand-overs that began until then, as in --since.",
)  # fmt: skip
@click.option(
    "--file", type=click.Path(dir_okay=False, path_type=Path), envvar="AUTOCLAVE_FILE",
    help="A copy of a ledger, or one that was set aside. The service is not asked.",
)  # fmt: skip
@options.node_name
@options.output("table", "csv", "json", "jsonl")
@options.run_dir
@options.state_dir
def listing(  # noqa: PLR0913, PLR0917 - its flags
    gpu: str, since: float, until: float, file: Path | None, node_name: str, output: str, run_dir: Path, state_dir: Path
) -> None:
    """List the hand-overs of GPUs: who had which GPU when, and what was proven before.

    One line for each hand-over, oldest first. The tenant is the pod, by its name if the create gate is in force and by
    its UID otherwise, or the job or claim that the GPU was acquired for. The table shows local time; the other formats
    show UTC and more columns. `unsigned`: the receipt is not signed; `unknown`: its row is no longer in the ledger.

    The list is as trustworthy as the ledger: `autoclave ledger verify` checks it, and `autoclave receipt verify` a
    receipt. If the service does not answer, the list comes from the ledger in --state-dir, and stderr says so.
    """
    handovers = importlib.import_module("autoclave.cli.handovers")  # late: it decodes events
    found = handovers.read(file, run_dir, state_dir, gpu, since)
    handovers.show(found, node_name or platform.node(), output, since=since, until=until)
