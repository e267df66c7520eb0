"""``autoclave manual``: the man pages, and the manual: every ``--help`` on one page.

``python -m autoclave.cli.verbs.manual > docs/cli.md`` writes the manual; a test keeps the two equal. Both are made from
the commands: autoclave(1) and one page for each verb.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from autoclave import cli
from autoclave.cli import ENVIRONMENT, document, human, options
from scrubber import __version__
from scrubber.ground.errors import FatalError


@click.command(context_settings=ENVIRONMENT)
@click.argument("directory", type=options.DIRECTORY)
def command(directory: Path) -> None:
    """Write the man pages of all verbs into a directory.

    For example /usr/local/share/man/man1: then `man autoclave-status` shows the page of `autoclave status`.
    """
    made = pages()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, page in made.items():
            (directory / name).write_text(page + "\n")
    except OSError as error:
        why = f"cannot write the man pages into {directory}: {error.strerror}"
        raise FatalError(f"{why}; name a directory that this user can write") from error
    click.echo(human.printable(f"wrote {len(made)} pages into {directory}"))


WIDTH = 80

TITLE = """\
# The command line

This page is made from `autoclave --help` and its verbs (`make docs`); change those, not this.
"""


def text() -> str:
    """The whole page."""
    sections = [TITLE, *_sections(root(), 2), f"## For programs\n\n{inspect.cleandoc(document.__doc__ or '')}\n"]
    return "\n".join(sections)


def root() -> click.Context:
    """The command ``autoclave``."""
    return click.Context(cli.cli, info_name="autoclave", terminal_width=WIDTH, **cli.cli.context_settings)


def subcommands(ctx: click.Context) -> Iterator[click.Context]:
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
    for verb in subcommands(ctx):
        yield from _sections(verb, min(level + 1, 4))


def pages() -> dict[str, str]:
    """The text of each page, by its file name."""
    top = root()
    found = {"autoclave.1": "\n".join(_root(top))}
    for verb in subcommands(top):
        found[f"{_name(verb)}.1"] = "\n".join(_verb(verb))
    return found


def _root(ctx: click.Context) -> Iterator[str]:
    yield from _head(ctx)
    yield from _body(ctx)
    yield ".SH COMMANDS"
    for verb in subcommands(ctx):
        yield from (".TP", f"\\fB{_escaped(_name(verb))}\\fR(1)", _text(_line(verb)))
    yield from _end()


def _verb(ctx: click.Context) -> Iterator[str]:
    yield from _head(ctx)
    yield from _body(ctx)
    verbs = list(subcommands(ctx))
    if verbs:
        yield ".SH COMMANDS"
    for verb in verbs:
        yield f".SS {_usage_line(verb)}"
        yield from _description(verb)
        yield from _options(verb)
    yield from _end()
    yield ".SH SEE ALSO"
    yield "\\fBautoclave\\fR(1)"


def _head(ctx: click.Context) -> Iterator[str]:
    yield f'.TH {_name(ctx).upper()} 1 "" "Autoclave {__version__}" "Autoclave"'
    yield from (".SH NAME", f"{_escaped(_name(ctx))} \\- {_text(_line(ctx).removesuffix('.'))}")
    yield from (".SH SYNOPSIS", f"\\fB{_escaped(ctx.command_path)}\\fR {_pieces(ctx)}")


def _body(ctx: click.Context) -> Iterator[str]:
    yield ".SH DESCRIPTION"
    yield from _description(ctx)
    yield ".SH OPTIONS"
    yield from _options(ctx)


def _end() -> Iterator[str]:
    *notes, exits = cli.EPILOG.strip().split("\n\n")
    yield from (".SH EXIT STATUS", _text(exits.removeprefix("Exit codes: ")), ".SH NOTES")
    yield "\n.PP\n".join(map(_text, notes))


def _description(ctx: click.Context) -> Iterator[str]:
    yield "\n.PP\n".join(map(_text, (ctx.command.help or "").split("\n\n")))


def _options(ctx: click.Context) -> Iterator[str]:
    for param in ctx.command.get_params(ctx):
        record = param.get_help_record(ctx)
        if isinstance(param, click.Option) and record is not None:
            yield from (".TP", f"\\fB{_escaped(record[0])}\\fR", _text(record[1]))


def _usage_line(ctx: click.Context) -> str:
    return f"{_escaped(ctx.command_path)} {_pieces(ctx)}"


def _pieces(ctx: click.Context) -> str:
    return _escaped(" ".join(ctx.command.collect_usage_pieces(ctx)))


def _name(ctx: click.Context) -> str:
    return ctx.command_path.replace(" ", "-")


def _line(ctx: click.Context) -> str:
    return (ctx.command.help or "").partition("\n\n")[0].replace("\n", " ")


def _text(paragraph: str) -> str:
    """A paragraph: what stands in backquotes is bold."""
    return re.sub("`([^`]+)`", r"\\fB\1\\fR", _escaped(" ".join(paragraph.split())))


def _escaped(text: str) -> str:
    r"""The text as roff reads it. ``\&`` at the beginning keeps a dot from being a request."""
    return "\\&" + text.replace("\\", "\\e").replace("-", "\\-")


if __name__ == "__main__":
    click.echo(text(), nl=False)
