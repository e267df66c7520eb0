"""The manual: every ``--help`` on one page. ``python -m deploy.manual > docs/cli.md`` writes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from autoclave import cli
from autoclave.cli import document

WIDTH = 80

TITLE = """\
# The command line

This page is made from `autoclave --help` and its verbs (`make docs`); change those, not this.
"""


def text() -> str:
    """The whole page."""
    root = click.Context(cli.cli, info_name="autoclave", terminal_width=WIDTH, **cli.cli.context_settings)
    sections = [TITLE, *_sections(root, 2), f"## For programs\n\n{inspect.cleandoc(document.__doc__ or '')}\n"]
    return "\n".join(sections)


def _subcommands(ctx: click.Context) -> Iterator[click.Context]:
    """The verbs of a command, in their order; none for a command that has none."""
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            verb = ctx.command.get_command(ctx, name)
            if verb is not None:
                yield click.Context(verb, parent=ctx, info_name=name)


def _sections(ctx: click.Context, level: int) -> Iterator[str]:
    # Trailing spaces are click's, where a verb of the list needs a second line.
    usage = "\n".join(line.rstrip() for line in ctx.get_help().splitlines())
    yield f"{'#' * level} {ctx.command_path}\n\n```text\n{usage}\n```\n"
    for verb in _subcommands(ctx):
        yield from _sections(verb, min(level + 1, 4))


if __name__ == "__main__":
    click.echo(text(), nl=False)
