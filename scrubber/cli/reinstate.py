"""``autoclave reinstate``: bring a GPU back, if it can be proven clean and healthy."""

from __future__ import annotations

from pathlib import Path

import click

from scrubber.api import client
from scrubber.cli import asking, following, options


@click.command(context_settings=options.ENVIRONMENT)
@options.gpu
@click.option("--reason", default="", help="Why it may come back; kept in the ledger.")
@options.output("table", "json", "yaml")
@options.run_dir
def command(gpu: str, reason: str, output: str, run_dir: Path) -> int:
    """Bring a quarantined GPU back through the slow path.

    It stays out unless the scrub ends clean. Exit code 1 when it does.
    """

    async def reinstate(admin: client.Admin) -> int:
        devices = following.named((await admin.status([gpu])).devices)
        results = await following.follow(admin.reinstate(gpu, reason, asking.asker()), devices)
        return following.report(results, devices, output)

    return following.wait(run_dir, reinstate)
