"""``autoclave quarantine``: take a GPU out."""

from __future__ import annotations

from pathlib import Path

import click

from scrubber.cli import cells, human, options, service_call


@click.command(context_settings=options.ENVIRONMENT)
@options.gpu
@click.option("--reason", required=True, help="Why; shown to whoever asks where the GPU is.")
@options.run_dir
def command(gpu: str, reason: str, run_dir: Path) -> None:
    """Take a GPU out until somebody reinstates it.

    In use, it is only reported as unhealthy: nobody's work is cut off, and it is taken out as soon as it is released.
    """
    device = service_call.ask(run_dir, lambda admin: admin.quarantine(gpu, reason, service_call.asker()))
    told = f"GPU {device.name} ({device.device}) is {device.state}: {cells.note(device)}"
    click.echo(human.printable(told))
