"""What a person or a prolog asks at the door for whoever hands devices out, which knows devices by UUID alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import click

from scrubber.api import client
from scrubber.cli import job_progress, options, service_call
from scrubber.core import views
from scrubber.ground import paths

T = TypeVar("T")
Devices = Mapping[str, views.DeviceStatus]

gpus = click.argument("gpus", nargs=-1, required=True, metavar="GPU...", shell_complete=options.complete_gpus)


def hand(
    run_dir: Path, names: tuple[str, ...], deed: Callable[[client.ScrubberClient, Devices], Awaitable[T]]
) -> tuple[Devices, T]:
    """Do it to the GPUs of these names; which they are, and what came of it."""
    devices = job_progress.named(service_call.ask(run_dir, lambda admin: admin.status(names)).devices)
    return devices, asyncio.run(_hand(paths.socket(run_dir), devices, deed))


async def _hand(socket: Path, devices: Devices, deed: Callable[[client.ScrubberClient, Devices], Awaitable[T]]) -> T:
    async with client.ScrubberClient(socket) as door:
        return await deed(door, devices)
