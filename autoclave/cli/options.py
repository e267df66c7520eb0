"""Flags and value types that several verbs share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from autoclave.cli import environment
from scrubber.ground import paths

P = ParamSpec("P")
R = TypeVar("R")

ENVIRONMENT = environment.ENVIRONMENT

DIRECTORY = click.Path(file_okay=False, readable=False, path_type=Path)


class IntRange(click.IntRange):
    """An integer. Click's own type calls itself "integer range" in help texts and errors."""

    name = "integer"


class Parsed(click.ParamType[Any]):
    """A value that a function parses. Its ValueError says what is expected."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        """``name`` is what the help text calls the value."""
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        """The value, or a usage error."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"found {value!r}, {error}", param, ctx)


def output(*choices: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The flag ``-o``. The first choice is the default."""
    return click.option("-o", "--output", type=click.Choice(choices), default=choices[0], help="Output format.")


def complete_gpus(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """GPU names for the shell. Imported late, because parsing flags needs no connection."""
    items: list[CompletionItem] = importlib.import_module("autoclave.cli.gpu_names").gpus(ctx, param, incomplete)
    return items


def complete_policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of shipped policies for the shell; files where no name fits."""
    del ctx, param
    names = importlib.import_module("policies.load").shipped()
    # Files first: the script for bash forgets what came before them.
    return [CompletionItem(incomplete, type="file"), *(CompletionItem(it) for it in names if it.startswith(incomplete))]


run_dir = click.option(
    "--run-dir", type=DIRECTORY, default=paths.RUN_DIR, help="Directory with the sockets of the service."
)
state_dir = click.option("--state-dir", type=DIRECTORY, default=paths.STATE_DIR, help="Directory with the ledger.")
gpu = click.argument("gpu", shell_complete=complete_gpus)
gpus = click.argument("gpus", nargs=-1, metavar="[GPU]...", shell_complete=complete_gpus)
