"""``autoclave scrub``: scrub GPUs now, or join the jobs that run, and wait for the proof."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, Unpack

import click

from autoclave.cli import ENVIRONMENT, job_progress, options
from scrubber.api import client
from scrubber.ground.documents import units


class How(TypedDict):
    """The flags that say how to scrub."""

    path: str | None
    no_wait: bool
    timeout: float | None
    quiet: bool


@click.command(context_settings=ENVIRONMENT)
@options.gpus
@click.option("--all", "every", is_flag=True, envvar="AUTOCLAVE_ALL", help="All GPUs of this node.")
@click.option(
    "--path",
    type=click.Choice(["fast", "slow", "reset"]),
    help="Which path; the default is the policy's. A due path is never replaced by a less thorough one."
    " A scrub that runs on a less thorough path is cancelled and begun anew.",
)
@click.option("--no-wait", is_flag=True, help="Start the scrub and do not wait.")
@click.option(
    "--timeout", type=options.Parsed("duration", units.parse_duration), help="Stop waiting after this time, as in 90s."
)
@options.quiet
@options.output("table", "json", "yaml")
@options.run_dir
def command(gpus: tuple[str, ...], every: bool, output: str, run_dir: Path, **how: Unpack[How]) -> int:
    """Scrub GPUs now and prove them clean.

    A GPU that is in use is not touched. Ctrl-C and --timeout end the waiting, not the scrub. Exit code 1 when a GPU is
    not clean, 5 when --timeout ended the waiting.
    """
    if bool(gpus) is every:
        raise click.UsageError("name GPUs or pass --all, not both")

    async def scrub(admin: client.AdminClient) -> int:
        # Resolve the names first, so that a wrong name starts no scrub.
        devices = job_progress.named((await admin.status(gpus)).devices)
        stream = admin.scrub(gpus, every=every, path=how["path"] or "", no_wait=how["no_wait"], timeout=how["timeout"])
        results = await job_progress.follow(stream, devices, quiet=how["quiet"])
        return job_progress.report(results, devices, output)

    return job_progress.wait(run_dir, scrub)
