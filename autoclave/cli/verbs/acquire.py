"""``autoclave acquire``: take GPUs for a job, on a node without a kubelet."""

from __future__ import annotations

from pathlib import Path

import click

from autoclave.cli import ENVIRONMENT, document, human, job_progress, options, service_call


@click.command(context_settings=ENVIRONMENT)
@options.needed_gpus
@options.owner("Who the GPUs are for, such as a job id.")
@options.output("text", "json", "yaml")
@options.run_dir
def command(gpus: tuple[str, ...], owner: str | None, output: str, run_dir: Path) -> None:
    """Take clean GPUs for a job, on a node without a kubelet.

    Takes all of the GPUs or none. The GPUs belong to the job until `autoclave release`; the service does nothing to
    them meanwhile. A GPU that is not clean is scrubbed first, within the allocate budget of the policy. Exit code 1
    when a GPU is not clean by then, or is already granted or in use. If the same owner acquires the same GPUs again, it
    gets its present grants, and the GPUs are not scrubbed again. The owner is shown by status, explain and history,
    and in the receipt of the scrub after the job. Nobody verifies it.
    """
    devices = job_progress.named(service_call.ask(run_dir, lambda admin: admin.status(gpus)).devices)
    grants = service_call.ask_for_devices(
        run_dir, lambda scrubber: scrubber.acquire(list(devices), exclusive=True, owner=owner or "")
    )
    if output != "text":
        document.emit(document.listing("Grant", map(document.fields, grants)), output)
        return
    for grant in grants:
        proof = f"receipt {grant.receipt}" if grant.receipt else "not proven clean, because the policy mode is observe"
        to = f" to {owner}" if owner else ""
        text = f"GPU {devices[grant.device].name} ({grant.device}) is granted{to}: grant {grant.grant}, {proof}"
        click.echo(human.printable(text))
