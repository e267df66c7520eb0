"""``autoclave completion``: the script with which a shell completes verbs, flags and names."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from autoclave.cli import ENVIRONMENT

SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(context_settings=ENVIRONMENT)
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    It completes verbs, flags, GPU names and names of shipped policies.

    For bash: eval "$(autoclave completion bash)" in ~/.bashrc.
    """
    found = SHELLS[shell](ctx.find_root().command, {}, "autoclave", "_AUTOCLAVE_COMPLETE")
    click.echo(found.source_template % found.source_vars())
