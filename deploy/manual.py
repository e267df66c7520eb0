"""The manual: every ``--help`` on one page. ``python -m deploy.manual > docs/cli.md`` writes it."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator

import click

from autoclave import cli
from autoclave.cli import document

WIDTH = 80
SHARED = 3  # an option that this many commands have, with the same words, stands once

TITLE = """\
# The command line

This page is made from `autoclave --help` and its verbs (`make docs`); change those, not this. Options that several
verbs share stand [once, below](#options-of-several-verbs); `autoclave VERB --help` shows all options of a verb.
"""

Option = tuple[str, str]


def text() -> str:
    """The whole page."""
    verbs = list(commands())
    users = Counter(option for verb in verbs for option in _options(verb))
    shared = [option for option, count in users.items() if count >= SHARED]
    sections = [
        TITLE,
        *(_section(verb, shared) for verb in verbs if _says_more(verb, shared)),
        f"## Options of several verbs\n\n```text\n{_definitions(verbs[0], shared)}\n```\n",
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


def _options(verb: click.Context) -> list[Option]:
    given = verb.command.get_params(verb)
    records = (option.get_help_record(verb) for option in given if isinstance(option, click.Option))
    return [record for record in records if record is not None]


def _says_more(verb: click.Context, shared: list[Option]) -> bool:
    """Whether a command below a verb says more than its line in the list of that verb."""
    below_a_verb = verb.command_path.count(" ") > 1
    only_one_sentence = verb.command.get_short_help_str(limit=1000) == (verb.command.help or "").strip()
    return not below_a_verb or not only_one_sentence or any(option not in shared for option in _options(verb))


def _section(verb: click.Context, shared: list[Option]) -> str:
    own = [option for option in _options(verb) if option not in shared]
    parts = verb.make_formatter()
    verb.command.format_usage(verb, parts)
    verb.command.format_help_text(verb, parts)
    if own:
        parts.write_paragraph()
        parts.write(f"Options:\n{_definitions(verb, own)}\n")
    if isinstance(verb.command, click.Group):
        verb.command.format_commands(verb, parts)
    verb.command.format_epilog(verb, parts)
    level = min(verb.command_path.count(" ") + 2, 4)
    # Trailing spaces are click's, where a verb of the list needs a second line.
    usage = "\n".join(line.rstrip() for line in parts.getvalue().rstrip("\n").splitlines())
    return f"{'#' * level} {verb.command_path}\n\n```text\n{usage}\n```\n"


def _definitions(ctx: click.Context, records: list[Option]) -> str:
    parts = ctx.make_formatter()
    with parts.indentation():
        parts.write_dl(records)
    return parts.getvalue().rstrip("\n")


if __name__ == "__main__":
    click.echo(text(), nl=False)
