"""``autoclave release``: give back GPUs that ``autoclave acquire`` took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from autoclave.cli import ENVIRONMENT, document, human, job_progress, options, service_call


@click.command(context_settings=ENVIRONMENT)
@options.gpus
@options.owner("Without GPU: all GPUs of this owner. With GPU: refuse the GPU of another owner.")
@options.output("text", "json", "yaml")
@options.run_dir
def command(gpus: tuple[str, ...], owner: str | None, output: str, run_dir: Path) -> None:
    """Give back the GPUs of a job that has ended.

    The GPUs become dirty and are scrubbed. The policy (evict.leftovers) says what happens to processes that the job
    left behind. While a container uses one of the GPUs, none is given back and the exit code is 1. A GPU that is
    neither granted nor in use stays as it is, and is no failure.
    """
    if not gpus and owner is None:
        raise click.UsageError("name GPUs, or pass --owner for all GPUs of an owner")

    def named(names: Sequence[str]) -> job_progress.Devices:
        return job_progress.named(service_call.ask(run_dir, lambda admin: admin.status(names)).devices)

    devices = named(gpus) if gpus else {}
    released = service_call.ask_for_devices(
        run_dir, lambda scrubber: scrubber.release(list(devices), owner=owner or "")
    )
    if not gpus and released:
        devices = named(sorted(released))
    if not devices:
        click.echo(human.printable(f"autoclave: no GPU was acquired for {owner}, so nothing was given back"), err=True)
    if output != "text":
        items = (
            {"device": uuid, "index": it.index, "slice": it.slice, "released": uuid in released}
            for uuid, it in devices.items()
        )
        document.emit(document.listing("Release", items), output)
        return
    for uuid, it in devices.items():
        said = "is given back" if uuid in released else f"was not held, so nothing was given back; it is {it.state}"
        click.echo(human.printable(f"GPU {it.name} ({uuid}) {said}"))
