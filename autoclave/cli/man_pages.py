"""The man pages, made from the same commands as ``--help``: autoclave(1), and one page for each verb."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from autoclave import cli
from autoclave.cli import manual
from scrubber import __version__


def pages() -> dict[str, str]:
    """The text of each page, by its file name."""
    root = manual.root()
    found = {"autoclave.1": "\n".join(_root(root))}
    for verb in manual.subcommands(root):
        found[f"{_name(verb)}.1"] = "\n".join(_verb(verb))
    return found


def _root(ctx: click.Context) -> Iterator[str]:
    yield from _head(ctx)
    yield from _body(ctx)
    yield ".SH COMMANDS"
    for verb in manual.subcommands(ctx):
        yield from (".TP", f"\\fB{_escaped(_name(verb))}\\fR(1)", _text(_line(verb)))
    yield from _end()


def _verb(ctx: click.Context) -> Iterator[str]:
    yield from _head(ctx)
    yield from _body(ctx)
    subcommands = list(manual.subcommands(ctx))
    if subcommands:
        yield ".SH COMMANDS"
    for each in subcommands:
        yield f".SS {_usage(each)}"
        yield from _description(each)
        yield from _options(each)
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


def _usage(ctx: click.Context) -> str:
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
