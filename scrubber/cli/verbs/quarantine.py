"""``autoclave quarantine``: quarantine a GPU by hand."""

from __future__ import annotations

from pathlib import Path

import click

from scrubber.cli import cells, human, options, service_call


@click.command(context_settings=options.ENVIRONMENT)
@options.gpu
@click.option("--reason", required=True, help="Why; shown by status and explain.")
@options.run_dir
def command(gpu: str, reason: str, run_dir: Path) -> None:
    """Quarantine a GPU until it is reinstated.

    A GPU that is granted or in use is reported unhealthy at once and quarantined when it is released. Its pod goes on.
    """
    device = service_call.ask(run_dir, lambda admin: admin.quarantine(gpu, reason, service_call.asker()))
    text = f"GPU {device.name} ({device.device}) is {device.state}: {cells.note(device)}"
    click.echo(human.printable(text))
