"""``autoclave status``: the state of each GPU, once or live."""

from __future__ import annotations

from pathlib import Path

import click

from scrubber.cli import human, options, service_call, status_view, status_watch


@click.command(context_settings=options.ENVIRONMENT)
@options.gpus
@options.output("table", "wide", "json", "yaml")
@click.option("--watch", is_flag=True, help="Keep running and show every change.")
@options.run_dir
def command(gpus: tuple[str, ...], output: str, watch: bool, run_dir: Path) -> None:
    """Show the state of GPUs, and why."""
    if watch:
        service_call.ask(run_dir, lambda admin: status_watch.watch(admin, gpus, output))
        return
    status = service_call.ask(run_dir, lambda admin: admin.status(gpus))
    status_view.show(status, output)
    for fault in status_view.faults(status.service):
        click.echo(f"autoclave: {human.printable(fault)}", err=True)
