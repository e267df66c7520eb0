"""Calls the plugin's socket for ``acquire`` and ``release``. That socket knows devices by UUID only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from autoclave.cli import job_progress, options, service_call
from scrubber.api import client
from scrubber.core import views
from scrubber.ground import paths

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Devices = Mapping[str, views.DeviceStatus]

gpus = click.argument("gpus", nargs=-1, required=True, metavar="GPU...", shell_complete=options.complete_gpus)


def _named(text: str) -> str:
    """An owner. A blank one is an unset variable of a script: as no owner at all, it would release any job's GPU."""
    if not text.strip():
        raise ValueError("expected who the GPUs are for, such as a job id")
    return text


def owner(about: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The flag ``--owner``; None where it is not given."""
    return click.option("--owner", type=options.Parsed("text", _named), help=about)


def by_uuid(run_dir: Path, names: Sequence[str]) -> Devices:
    """The GPUs with these names."""
    return job_progress.named(service_call.ask(run_dir, lambda admin: admin.status(names)).devices)


def call(run_dir: Path, request: Callable[[client.ScrubberClient], Awaitable[T]]) -> T:
    """The answer to this request."""
    return asyncio.run(_call(paths.scrubber_socket(run_dir), request))


async def _call(socket: Path, request: Callable[[client.ScrubberClient], Awaitable[T]]) -> T:
    async with client.ScrubberClient(socket) as scrubber:
        return await request(scrubber)
