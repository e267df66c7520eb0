"""``autoclave demo``: the whole story on simulated GPUs, each line checked."""

from __future__ import annotations

import click

from scrubber.cli import options
from scrubber.demo import story


@click.command(context_settings=options.ENVIRONMENT)
@click.option(
    "--gpus", type=options.IntRange(story.LEAST_GPUS, story.MOST_GPUS), default=story.LEAST_GPUS, help="How many GPUs."
)
@click.option("--dra", is_flag=True, help="With ResourceClaims and the DRA driver, in place of the device plugin.")
@click.option("--json", "as_json", is_flag=True, envvar="AUTOCLAVE_JSON", help="Print the checks as JSON.")
@click.option("--keep", is_flag=True, help="Leave the directory with the ledger and the log behind.")
def command(gpus: int, dra: bool, as_json: bool, keep: bool) -> int:
    """Show the whole story on simulated GPUs.

    Starts a kubelet stand-in, the device plugin and the scrub service in a temporary directory. With --dra: the DRA
    driver, and a stand-in for the API server. Exit code 0 only if every promise held.
    """
    return story.show(gpus, dra=dra, as_json=as_json, keep=keep)
