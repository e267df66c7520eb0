"""``autoclave reinstate``: end the quarantine of a GPU, when a scrub proves it clean and healthy."""

from __future__ import annotations

from pathlib import Path

import click

from autoclave.cli import ENVIRONMENT, job_progress, options, service_call
from scrubber.api import client


@click.command(context_settings=ENVIRONMENT)
@options.needed_gpus
@click.option("--reason", default="", show_default=False, help="Why; stored in the ledger.")
@click.option("--without-scrub", is_flag=True, help="Without a scrub first; needs --i-know and --reason.")
@click.option("--i-know", is_flag=True, help="Confirms --without-scrub: no test shows that the GPU is healthy.")
@options.quiet
@options.output("table", "json", "yaml")
@options.run_dir
def command(
    gpus: tuple[str, ...], reason: str, without_scrub: bool, i_know: bool, quiet: bool, output: str, run_dir: Path
) -> int:
    """End the quarantine of GPUs with a scrub and a self-test.

    The scrub takes the slow path, or the path reset if the fault asks for a reset.

    If the scrub of a GPU does not pass, the GPU stays quarantined and the exit code is 1. A GPU that is not quarantined
    is left as it is, and the exit code is 4.

    With --without-scrub the quarantine ends at once, without a reset and without a test. The ledger stores who asked
    for it. The GPU is dirty then: it is cleared and read back before it is handed out.
    """
    if without_scrub and not (i_know and reason):
        raise click.UsageError("--without-scrub needs --i-know and --reason: no test shows that the GPU is healthy")
    if i_know and not without_scrub:
        raise click.UsageError("--i-know needs --without-scrub")

    async def reinstate(admin: client.AdminClient) -> int:
        devices = job_progress.named((await admin.status(gpus)).devices)
        stream = admin.reinstate(gpus, reason, service_call.asker(), without_evidence=without_scrub)
        results = await job_progress.follow(stream, devices, quiet=quiet)
        return job_progress.report(results, devices, output)

    return job_progress.wait(run_dir, reinstate)
