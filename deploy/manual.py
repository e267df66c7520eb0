"""The manual: what ``--help`` says, as a page for readers of docs/ and as a page for ``man``.

``python -m deploy.manual docs/cli.md`` writes it into the first one. ``python -m deploy.manual man`` prints the other
one, which is made with the wheel.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from autoclave import cli
from autoclave.cli.output import document

WIDTH = 80
PROGRAMS = ("scrubber", "plugin", "dra")  # whose flags stand in units and manifests, which are read without a shell
PAGE = "autoclave.1"  # for man
_MADE = re.compile(r"(<!-- made by `make docs`: begin -->\n).*(<!-- made by `make docs`: end -->)", re.DOTALL)


def with_commands(page: str) -> str:
    """The page for readers, with what ``--help`` says now."""
    return _MADE.sub(lambda found: f"{found[1]}\n{text()}\n{found[2]}", page)


def text() -> str:
    """The part of that page that is made."""
    root, *verbs = commands()
    programs = [verb for verb in verbs if verb.info_name in PROGRAMS]
    contract = inspect.cleandoc(document.__doc__ or "").replace("``", "`")
    return "\n".join([*(_section(ctx) for ctx in (root, *programs)), f"## For programs\n\n{contract}\n"])


def man() -> str:
    """The same and all other verbs, in the language of ``man``."""
    root, *verbs = commands()
    lines = [
        '.TH AUTOCLAVE 1 "" Autoclave',
        *(".SH NAME", f"autoclave \\- {(root.command.help or '').rstrip('.')}"),
        *(".SH SYNOPSIS", _synopsis(root)),
        *(".SH DESCRIPTION", *_paragraphs(root.command.epilog or "")),
        *(".SH OPTIONS", *_options(root)),
    ]
    for verb in verbs:
        lines += [f".SH {_plain(verb.command_path)}", _synopsis(verb), ".PP", *_paragraphs(verb.command.help or "")]
        lines += _options(verb)
    return "\n".join(lines) + "\n"


def _synopsis(ctx: click.Context) -> str:
    return f"\\fB{_plain(ctx.command_path)}\\fR {_plain(' '.join(ctx.command.collect_usage_pieces(ctx)))}"


def _paragraphs(text: str) -> list[str]:
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n.PP\n".join(_plain(" ".join(paragraph.split())) for paragraph in paragraphs).split("\n")


def _options(ctx: click.Context) -> list[str]:
    """What each flag does; ``--help`` is said once."""
    lines = []
    for param in ctx.command.get_params(ctx):
        names, about = param.get_help_record(ctx) or ("", "")
        if about and (ctx.parent is None or param.name != "help"):
            lines += [".TP", f"\\fB{_plain(names)}\\fR", _plain(about)]
    return lines


def _plain(text: str) -> str:
    """A text that means nothing to ``man`` but itself."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


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
    if sys.argv[1:] == ["man"]:
        click.echo(man(), nl=False)
    else:
        place = Path(sys.argv[1])
        place.write_text(with_commands(place.read_text(encoding="utf-8")), encoding="utf-8")
