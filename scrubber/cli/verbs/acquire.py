"""``autoclave acquire``: take GPUs for a job, where no kubelet hands them out."""

from __future__ import annotations

from pathlib import Path

import click

from scrubber.api import client
from scrubber.cli import document, human, options, resolve_gpus
from scrubber.core import views


@click.command(context_settings=options.ENVIRONMENT)
@resolve_gpus.gpus
@options.output("text", "json", "yaml")
@options.run_dir
def command(gpus: tuple[str, ...], output: str, run_dir: Path) -> None:
    """Take clean GPUs for a job, where no kubelet hands them out.

    All or none. From then on they are the job's: nothing is done to them until `autoclave release`, whatever comes and
    goes on them meanwhile. A GPU that is not clean is waited for as long as the policy's allocate budget says. Exit
    code 1 when one is not clean by then, or is somebody's already.
    """

    async def acquire(door: client.ScrubberClient, devices: resolve_gpus.Devices) -> tuple[views.GrantedDevice, ...]:
        return await door.acquire(list(devices), fresh=True)

    devices, grants = resolve_gpus.hand(run_dir, gpus, acquire)
    if output != "text":
        document.emit(document.listing("Grant", map(document.fields, grants)), output)
        return
    for grant in grants:
        proof = f"receipt {grant.receipt}" if grant.receipt else "not proven clean, as the policy observes only"
        told = f"GPU {devices[grant.device].name} ({grant.device}) is granted: grant {grant.grant}, {proof}"
        click.echo(human.printable(told))
