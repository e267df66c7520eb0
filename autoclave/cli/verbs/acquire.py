"""``autoclave acquire``: take GPUs for a job, on a node without a kubelet."""

from __future__ import annotations

from pathlib import Path

import click

from autoclave.cli import ENVIRONMENT, document, human, options, resolve_gpus
from scrubber.api import client
from scrubber.ground.device_messages import GrantedDevice


@click.command(context_settings=ENVIRONMENT)
@resolve_gpus.gpus
@resolve_gpus.owner("Who the GPUs are for, such as a job id.")
@options.output("text", "json", "yaml")
@options.run_dir
def command(gpus: tuple[str, ...], owner: str | None, output: str, run_dir: Path) -> None:
    """Take clean GPUs for a job, on a node without a kubelet.

    Takes all of the GPUs or none. The GPUs belong to the job until `autoclave release`; the service does nothing to
    them meanwhile. A GPU that is not clean is scrubbed first, within the allocate budget of the policy. Exit code 1
    when a GPU is not clean by then, or is already granted or in use. The owner is shown by status, explain and history,
    and in the receipt of the scrub after the job. Nobody verifies it.
    """

    async def acquire(scrubber: client.ScrubberClient, devices: resolve_gpus.Devices) -> tuple[GrantedDevice, ...]:
        return await scrubber.acquire(list(devices), exclusive=True, owner=owner or "")

    devices, grants = resolve_gpus.call_with_uuids(run_dir, gpus, acquire)
    if output != "text":
        document.emit(document.listing("Grant", map(document.fields, grants)), output)
        return
    for grant in grants:
        proof = f"receipt {grant.receipt}" if grant.receipt else "not proven clean, because the policy mode is observe"
        to = f" to {owner}" if owner else ""
        text = f"GPU {devices[grant.device].name} ({grant.device}) is granted{to}: grant {grant.grant}, {proof}"
        click.echo(human.printable(text))
