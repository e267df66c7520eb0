"""``autoclave version``: the version of this command, and of the service if it answers."""

from __future__ import annotations

from pathlib import Path

import click

from autoclave.cli import ENVIRONMENT, document, human, options, service_call
from scrubber import __version__
from scrubber.core import views
from scrubber.ground.errors import AutoclaveError

PATIENCE = 2.0  # seconds: the version of the command is known without the service


@click.command(context_settings=ENVIRONMENT)
@options.output("text", "json", "yaml")
@options.run_dir
def command(output: str, run_dir: Path) -> None:
    """Show the version of this command and of the running service.

    Exit code 0 also when no service answers.
    """
    service: views.ServiceStatus | None = None
    why = ""
    try:
        service = service_call.ask_now(run_dir, lambda admin: admin.status(timeout=PATIENCE)).service
    except AutoclaveError as error:
        why = error.message
    if output != "text":
        about = {"version": service.version, "started": human.iso(service.started)} if service else None
        document.emit(document.single("Version", {"client": __version__, "service": about, "why": why}), output)
        return
    click.echo(f"client   {__version__}")
    if service is None:
        click.echo("service  not known")
        click.echo(human.printable(f"autoclave: {why}"), err=True)
        return
    click.echo(human.printable(f"service  {service.version}, since {human.local(service.started)}"))
    if service.version != __version__:
        click.echo("autoclave: the service has another version than this command: restart the older one", err=True)
