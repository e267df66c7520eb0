"""The manual: what ``--help`` says of the programs of a node. ``python -m deploy.manual > docs/cli.md`` writes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from autoclave import cli
from autoclave.cli import document

WIDTH = 80
PROGRAMS = ("scrubber", "plugin", "dra")  # whose flags stand in units and manifests, which are read without a shell

TITLE = """\
# The command line

This page is made from `autoclave --help` (`make docs`); change that, not this. `autoclave VERB --help` shows the flags
of a verb; here are only those of the programs of a node.
"""


def text() -> str:
    """The whole page."""
    root, *verbs = commands()
    programs = [verb for verb in verbs if verb.info_name in PROGRAMS]
    sections = [
        TITLE,
        *(_section(ctx) for ctx in (root, *programs)),
        f"## For programs\n\n{inspect.cleandoc(document.__doc__ or '')}\n",
    ]
    return "\n".join(sections)


def commands() -> Iterator[click.Context]:
    """The command and its verbs, each before the verbs below it."""
    root = click.Context(cli.cli, info_name="autoclave", terminal_width=WIDTH, **cli.cli.context_settings)
    yield from _with_verbs(root)


def _with_verbs(ctx: click.Context) -> Iterator[click.Context]:
    yield ctx
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            verb = ctx.command.get_command(ctx, name)
            if verb is not None:
                yield from _with_verbs(click.Context(verb, parent=ctx, info_name=name))


def _section(ctx: click.Context) -> str:
    # Trailing spaces are click's, where a verb of the list needs a second line.
    usage = "\n".join(line.rstrip() for line in ctx.get_help().splitlines())
    return f"## {ctx.command_path}\n\n```text\n{usage}\n```\n"


if __name__ == "__main__":
    click.echo(text(), nl=False)
