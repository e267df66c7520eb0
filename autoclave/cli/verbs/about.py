"""``autoclave version`` and ``completion``: about the command itself."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from autoclave.cli import ENVIRONMENT, options, service_call
from autoclave.cli.output import document, human
from ground.errors import AutoclaveError
from scrub_api import views
from scrubber import __version__

PATIENCE = 2.0  # seconds: the version of the command is known without the service


@click.command(context_settings=ENVIRONMENT)
@options.output("text", "json", "yaml")
@options.run_dir
def version(output: str, run_dir: Path) -> None:
    """Show the version of this command and of the running service.

    Exit code 0 also when no service answers.
    """
    service: views.ServiceStatus | None = None
    why = ""
    try:
        service = service_call.ask_now(run_dir, lambda admin: admin.status(timeout=PATIENCE)).service
    except AutoclaveError as error:
        why = str(error)
    if output != "text":
        about = {"version": service.version, "started": human.iso(service.started)} if service else None
        document.emit(document.single("Version", {"client": __version__, "service": about, "why": why}), output)
        return
    human.say(f"client   {__version__}")
    if service is None:
        human.say("service  not known")
        human.warn(why)
        return
    human.say(f"service  {service.version}, since {human.local(service.started)}")
    if service.version != __version__:
        human.warn("the service has another version than this command: restart the older one")


SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(context_settings=ENVIRONMENT)
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    It completes verbs, flags, GPU names and names of shipped policies.

    For bash: eval "$(autoclave completion bash)" in ~/.bashrc.
    """
    script = SHELLS[shell](ctx.find_root().command, {}, "autoclave", "_AUTOCLAVE_COMPLETE")
    click.echo(script.source_template % script.source_vars())
