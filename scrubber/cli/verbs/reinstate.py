"""``autoclave reinstate``: bring a GPU back, if it can be proven clean and healthy."""

from __future__ import annotations

from pathlib import Path

import click

from scrubber.api import client
from scrubber.cli import job_progress, options, service_call


@click.command(context_settings=options.ENVIRONMENT)
@options.gpu
@click.option("--reason", default="", help="Why it may come back; kept in the ledger.")
@click.option("--without-scrub", is_flag=True, help="Not through the slow path: needs --i-know and --reason.")
@click.option("--i-know", is_flag=True, help="With --without-scrub: nobody has tested that the GPU is well.")
@options.output("table", "json", "yaml")
@options.run_dir
def command(gpu: str, reason: str, without_scrub: bool, i_know: bool, output: str, run_dir: Path) -> int:
    """Bring a quarantined GPU back through the slow path.

    It stays out unless the scrub ends clean. Exit code 1 when it does.

    With --without-scrub the quarantine ends at once, without a reset and a test, and the ledger says who wanted that.
    The GPU is dirty then: it is cleared and read back as after any tenant before it is handed out.
    """
    if without_scrub and not (i_know and reason):
        raise click.UsageError("--without-scrub needs --i-know and a --reason: nobody has tested that the GPU is well")
    if i_know and not without_scrub:
        raise click.UsageError("--i-know goes with --without-scrub")

    async def reinstate(admin: client.AdminClient) -> int:
        devices = job_progress.named((await admin.status([gpu])).devices)
        stream = admin.reinstate(gpu, reason, service_call.asker(), without_evidence=without_scrub)
        results = await job_progress.follow(stream, devices)
        return job_progress.report(results, devices, output)

    return job_progress.wait(run_dir, reinstate)
