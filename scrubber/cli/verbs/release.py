"""``autoclave release``: give GPUs back that ``autoclave acquire`` took."""

from __future__ import annotations

from pathlib import Path

import click

from scrubber.api import client
from scrubber.cli import human, options, resolve_gpus


@click.command(context_settings=options.ENVIRONMENT)
@resolve_gpus.gpus
@options.run_dir
def command(gpus: tuple[str, ...], run_dir: Path) -> None:
    """Give GPUs back that a job had, once the job has ended.

    They are dirty then, and are scrubbed. What the job has left on them is ended as the policy says (evict.leftovers);
    while a container is on one, all stay the job's, and the exit code is 1. A GPU that nobody has is left alone.
    """

    async def release(door: client.ScrubberClient, devices: resolve_gpus.Devices) -> None:
        await door.release(list(devices))

    devices, _ = resolve_gpus.hand(run_dir, gpus, release)
    for device in devices.values():
        click.echo(human.printable(f"GPU {device.name} ({device.device}) was given back"))
