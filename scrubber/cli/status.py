"""``autoclave status``: where each GPU stands, once or live."""

from __future__ import annotations

from pathlib import Path

import click

from scrubber.cli import asking, options, overview, watching, words


@click.command(context_settings=options.ENVIRONMENT)
@options.gpus
@options.output("table", "wide", "json", "yaml")
@click.option("--watch", is_flag=True, help="Stay, and show every change.")
@options.run_dir
def command(gpus: tuple[str, ...], output: str, watch: bool, run_dir: Path) -> None:
    """Show GPUs: where each stands, and why."""
    if watch:
        asking.ask(run_dir, lambda admin: watching.watch(admin, gpus, output))
        return
    status = asking.ask(run_dir, lambda admin: admin.status(gpus))
    overview.show(status, output)
    for fault in overview.faults(status.service):
        click.echo(f"autoclave: {words.printable(fault)}", err=True)
