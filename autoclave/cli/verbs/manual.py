"""``autoclave manual``: the man pages."""

from __future__ import annotations

from pathlib import Path

import click

from autoclave.cli import human, man_pages, options
from scrubber.ground.errors import FatalError


@click.command(context_settings=options.ENVIRONMENT)
@click.argument("directory", type=options.DIRECTORY)
def command(directory: Path) -> None:
    """Write the man pages of all verbs into a directory.

    For example /usr/local/share/man/man1: then `man autoclave-status` shows the page of `autoclave status`.
    """
    pages = man_pages.pages()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            (directory / name).write_text(text + "\n")
    except OSError as error:
        why = f"cannot write the man pages into {directory}: {error.strerror}"
        raise FatalError(f"{why}; name a directory that this user can write") from error
    click.echo(human.printable(f"wrote {len(pages)} pages into {directory}"))
