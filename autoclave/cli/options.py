"""Flags and value types that several verbs share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from scrubber.ground import paths
from scrubber.ground.errors import AutoclaveError

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE = 0.5  # seconds that a person at the prompt waits at most for the names of GPUs
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


def _owner(text: str) -> str:
    """An owner. A blank one is an unset variable of a script: as no owner at all, it would release any job's GPU."""
    if not text.strip():
        raise ValueError("expected who the GPUs are for, such as a job id")
    return text


def owner(about: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The flag ``--owner``; None where it is not given."""
    return click.option("--owner", type=Parsed("text", _owner), help=about)


def complete_gpus(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Indices and UUIDs of GPUs that start with the typed text; none when the service does not answer quickly."""
    del param
    service_call = importlib.import_module("autoclave.cli.service_call")  # late: parsing flags needs no connection
    run_dir = Path(ctx.params.get("run_dir") or paths.RUN_DIR)
    try:
        status = service_call.ask_now(run_dir, lambda admin: admin.status(timeout=PATIENCE))
    except AutoclaveError:
        return []
    names = ((name, device) for device in status.devices for name in (device.name, device.device))
    return [
        CompletionItem(name, help=f"{device.state} {device.model}")
        for name, device in names
        if name.startswith(incomplete)
    ]


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
needed_gpus = click.argument("gpus", nargs=-1, required=True, metavar="GPU...", shell_complete=complete_gpus)
