"""``autoclave release``: give back GPUs that ``autoclave acquire`` took."""

from __future__ import annotations

from pathlib import Path

import click

from scrubber.api import client
from scrubber.cli import human, options, resolve_gpus


@click.command(context_settings=options.ENVIRONMENT)
@resolve_gpus.gpus
@resolve_gpus.owner("Refuse GPUs that were acquired for another owner.")
@options.run_dir
def command(gpus: tuple[str, ...], owner: str | None, run_dir: Path) -> None:
    """Give back the GPUs of a job that has ended.

    The GPUs become dirty and are scrubbed. The policy (evict.leftovers) says what happens to processes that the job
    left behind. While a container uses one of the GPUs, none is given back and the exit code is 1. A GPU that is
    neither granted nor in use stays as it is.
    """

    async def release(scrubber: client.ScrubberClient, devices: resolve_gpus.Devices) -> None:
        await scrubber.release(list(devices), owner=owner or "")

    devices, _ = resolve_gpus.call_with_uuids(run_dir, gpus, release)
    for device in devices.values():
        click.echo(human.printable(f"GPU {device.name} ({device.device}) is given back"))
