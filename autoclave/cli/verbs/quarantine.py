"""``autoclave quarantine``: quarantine GPUs by hand."""

from __future__ import annotations

from pathlib import Path

import click

from autoclave.cli import (
    ENVIRONMENT,
    NOT_CLEAN,
    UNREACHABLE,
    document,
    human,
    options,
    service_call,
    table,
    worst,
)
from scrubber.api import client
from scrubber.ground.errors import AutoclaveError, InvalidRequest, Unreachable


@click.command(context_settings=ENVIRONMENT)
@options.needed_gpus
@click.option("--reason", required=True, help="Why; shown by status and explain.")
@options.output("text", "json", "yaml")
@options.run_dir
def command(gpus: tuple[str, ...], reason: str, output: str, run_dir: Path) -> int:
    """Quarantine GPUs until they are reinstated.

    A GPU that is granted or in use is reported unhealthy at once and quarantined when it is released. Its pod goes on.
    If a GPU cannot be quarantined, the others are all the same.
    """

    async def quarantine(admin: client.AdminClient) -> int:
        named = (await admin.status(gpus)).devices  # first, so that a wrong name quarantines no GPU
        done, codes = [], []
        for it in named:
            try:
                done.append(await admin.quarantine(it.device, reason, service_call.asker()))
            except InvalidRequest:  # the reason: it is wrong for each of them
                raise
            except AutoclaveError as error:
                click.echo(human.printable(f"autoclave: cannot quarantine GPU {it.name}: {error.message}"), err=True)
                unreachable = isinstance(error, Unreachable)
                codes.append(UNREACHABLE if unreachable else NOT_CLEAN)
        if output != "text":
            document.emit(document.listing("DeviceStatus", map(document.fields, done)), output)
        else:
            for it in done:
                click.echo(human.printable(f"GPU {it.name} ({it.device}) is {it.state}: {table.note(it)}"))
        return worst(codes)

    return service_call.ask(run_dir, quarantine)
