"""``autoclave scrub``, ``quarantine`` and ``reinstate``: scrub GPUs and wait for the proof, or take GPUs out.

Progress and reasons go to stderr, results to stdout. A device without a result is not clean.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

import click

from autoclave.cli import (
    DONE,
    DURATION,
    ENVIRONMENT,
    LATE,
    LEFT_ALONE,
    NOT_CLEAN,
    UNREACHABLE,
    options,
    service_call,
    worst,
)
from autoclave.cli.output import document, human, text_tables
from ground.errors import AutoclaveError, InvalidRequest, Reason, Unreachable, joined
from scrub_api import admin_client, views
from scrub_api.device_messages import state_words


class How(TypedDict):
    """The flags that say how to scrub."""

    path: str | None
    no_wait: bool
    timeout: float | None
    quiet: bool


@click.command(context_settings=ENVIRONMENT)
@options.gpus
@options.every
@click.option(
    "--path",
    type=click.Choice(["fast", "slow", "reset"]),
    help="Which path; the default is the policy's. A due path is never replaced by a less thorough one."
    " A scrub that runs on a less thorough path is cancelled and begun anew.",
)
@click.option("--no-wait", is_flag=True, help="Start the scrub and do not wait.")
@click.option("--timeout", type=DURATION, help="Stop waiting after this time, as in 90s.")
@options.quiet
@options.output("table", "csv", "json", "yaml")
@options.run_dir
def scrub(gpus: tuple[str, ...], every: bool, output: str, run_dir: Path, **how: Unpack[How]) -> int:
    """Scrub GPUs now and prove them clean.

    A GPU that is in use is not touched. Ctrl-C and --timeout end the waiting, not the scrub. Exit code 1 when a GPU is
    not clean, 5 when --timeout ended the waiting.
    """
    every = every or gpus is options.ALL
    if bool(gpus) is every:
        raise click.UsageError("name GPUs or pass --all" + (", not both" if every else ""))

    def stream(admin: admin_client.AdminClient, _: Devices) -> AsyncIterator[views.ScrubProgress]:
        return admin.scrub(gpus, every=every, path=how["path"] or "", no_wait=how["no_wait"], timeout=how["timeout"])

    return _carry_out("scrub", run_dir, gpus, stream, output, quiet=how["quiet"])


@click.command(context_settings=ENVIRONMENT)
@options.needed_gpus
@click.option("--reason", required=True, help="Why; shown by status and explain.")
@options.output("text", "json", "yaml")
@options.run_dir
def quarantine(gpus: tuple[str, ...], reason: str, output: str, run_dir: Path) -> int:
    """Quarantine GPUs until they are reinstated.

    A GPU that is granted or in use is reported unhealthy at once and quarantined when it is released. Its pod goes on.
    If a GPU cannot be quarantined, the others are all the same.
    """

    async def quarantine(admin: admin_client.AdminClient) -> int:
        named = (await admin.status(gpus)).devices  # first, so that a wrong name quarantines no GPU
        done, codes = [], []
        for device in named:
            try:
                done.append(await admin.quarantine(device.device, reason, service_call.caller()))
            except InvalidRequest:  # the reason: it is wrong for each of them
                raise
            except AutoclaveError as error:
                human.warn(f"cannot quarantine GPU {device.name}: {error}")
                codes.append(UNREACHABLE if isinstance(error, Unreachable) else NOT_CLEAN)
        if output != "text":
            document.emit(document.listing("DeviceStatus", map(document.fields, done)), output)
        else:
            for device in done:
                why = text_tables.describe(device)
                human.say(f"GPU {device.name} ({device.device}) is {state_words(device.state)}: {why}")
        return worst(codes)

    return service_call.ask(run_dir, quarantine)


@click.command(context_settings=ENVIRONMENT)
@options.needed_gpus
@click.option("--reason", default="", show_default=False, help="Why; stored in the ledger.")
@click.option("--without-scrub", is_flag=True, help="Without a scrub first; needs --i-know and --reason.")
@click.option("--i-know", is_flag=True, help="Confirms --without-scrub: no test shows that the GPU is healthy.")
@options.quiet
@options.output("table", "csv", "json", "yaml")
@options.run_dir
def reinstate(
    gpus: tuple[str, ...], reason: str, without_scrub: bool, i_know: bool, quiet: bool, output: str, run_dir: Path
) -> int:
    """End the quarantine of GPUs with a scrub and a self-test.

    The scrub takes the slow path, or the path reset if the fault asks for a reset.

    If the scrub of a GPU does not pass, the GPU stays quarantined and the exit code is 1. A GPU that is not quarantined
    is left as it is, and the exit code is 4.

    If an operator quarantined a GPU that is granted or in use, the quarantine waits for the end of the use. Until then,
    reinstate withdraws it, without a scrub, and the exit code is 0.

    With --without-scrub the quarantine ends at once, without a reset and without a test. The ledger stores who asked
    for it. The GPU is dirty then: it is cleared and read back before it is handed out.
    """
    if without_scrub and not (i_know and reason):
        raise click.UsageError("--without-scrub needs --i-know and --reason: no test shows that the GPU is healthy")
    if i_know and not without_scrub:
        raise click.UsageError("--i-know needs --without-scrub")

    def stream(admin: admin_client.AdminClient, devices: Devices) -> AsyncIterator[views.ScrubProgress]:
        return admin.reinstate(list(devices), reason, service_call.caller(), without_evidence=without_scrub)

    return _carry_out("reinstate", run_dir, gpus, stream, output, quiet=quiet)


Devices = Mapping[str, views.DeviceStatus]
Results = dict[str, views.ScrubProgress]
MISSING = views.ScrubResult(
    clean=False, state="unknown", why="the service sent no result", reason=Reason.INTERNAL.value
)
OVERDUE = views.ScrubResult(
    clean=False,
    state="scrubbing",
    why="--timeout ended the waiting; the scrub goes on",
    reason=Reason.TIMED_OUT.value,
    running=True,
)


def _carry_out(
    verb: str,
    run_dir: Path,
    gpus: Sequence[str],
    stream: Callable[[admin_client.AdminClient, Devices], AsyncIterator[views.ScrubProgress]],
    output: str,
    *,
    quiet: bool,
) -> int:
    """Start the scrubs, follow them to their end, and print the results. After Ctrl-C, say that they go on."""

    async def work(admin: admin_client.AdminClient) -> int:
        devices = await service_call.find(admin, gpus)  # first, so that a wrong name starts no scrub
        return report(await follow(stream(admin, devices), devices, quiet=quiet), devices, output, verb)

    try:
        return service_call.ask(run_dir, work)
    except KeyboardInterrupt:
        human.warn("no longer waiting; the scrub goes on, `autoclave status` shows it")
        raise


async def follow(stream: AsyncIterator[views.ScrubProgress], devices: Devices, *, quiet: bool = False) -> Results:
    """The last message of each device, also if a time limit ends the stream. Shows the progress meanwhile."""
    results = {device: views.ScrubProgress(device, "", result=MISSING) for device in devices}
    try:
        with _shown(devices, quiet=quiet) as show:
            async for message in stream:
                show(message)
                results[message.device] = message if message.result else replace(message, result=MISSING)
    except Unreachable as error:
        if error.reason is not Reason.TIMED_OUT:
            raise
        return {
            uuid: replace(progress, result=OVERDUE) if progress.result is MISSING else progress
            for uuid, progress in results.items()
        }
    return results


def report(results: Results, devices: Devices, output: str, verb: str) -> int:
    """Print the results and return the exit code."""
    ordered = [(results[uuid], results[uuid].result or MISSING) for uuid in devices if uuid in results]
    if output in {"table", "csv"}:
        document.show_table(
            text_tables.RESULTS, text_tables.results([progress for progress, _ in ordered], devices), output
        )
    else:
        items = (
            {**document.gpu(devices[progress.device]), "job": progress.job, **document.fields(result)}
            for progress, result in ordered
        )
        document.emit(document.listing("ScrubResult", items), output)
    for uuid, progress in results.items():  # also of a device that the service found after it was asked for all
        result = progress.result or MISSING
        if _code(result) != DONE or result.withdrawn:
            name = devices[uuid].argument if uuid in devices else uuid
            refused = not progress.job and result is not MISSING
            human.warn(_no(result, name, verb if refused else ""))
    return worst(_code(progress.result or MISSING) for progress in results.values())


def _code(result: views.ScrubResult) -> int:
    if result is OVERDUE:
        return LATE
    if result.left_alone:
        return LEFT_ALONE
    return DONE if result.clean or result.running or result.withdrawn else NOT_CLEAN


def _no(result: views.ScrubResult, name: str, refused: str) -> str:
    """Why a GPU is not clean. ``refused``: the verb, if there was no job, so that nothing was done to the GPU."""
    why, advice = result.why or result.reason or result.state, f"`autoclave explain {name}` says more"
    if result.withdrawn:
        return f"GPU {name} is {state_words(result.state)}: {why}"
    if result is OVERDUE:
        return f"GPU {name} is not clean yet: {why}, `autoclave status {name}` shows it"
    if refused:
        return joined(f"cannot {refused} GPU {name}: {why}", *(result.remedies or (advice,)))
    return joined(f"GPU {name} is not clean: {why}", advice)


@contextmanager
def _shown(devices: Devices, *, quiet: bool) -> Iterator[Callable[[views.ScrubProgress], None]]:
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with importlib.import_module("autoclave.cli.output.progress_bars").progress(devices) as show:
        yield show
