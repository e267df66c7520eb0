"""Follows scrub jobs to their end: progress bars on a terminal, none elsewhere, then the results.

Progress and reasons go to stderr, results to stdout. A device without a result is not clean.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from autoclave.cli import DONE, LATE, LEFT_ALONE, NOT_CLEAN, document, human, service_call, table, worst
from scrubber.api import client
from scrubber.core import views
from scrubber.ground.errors import NotReady, Reason

Results = dict[str, views.ScrubProgress]
Devices = Mapping[str, views.DeviceStatus]

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


def wait(run_dir: Path, work: Callable[[client.AdminClient], Awaitable[int]]) -> int:
    """Run ``work`` to its end. After Ctrl-C, say that the scrub goes on."""
    try:
        return service_call.ask(run_dir, work)
    except KeyboardInterrupt:
        click.echo("autoclave: no longer waiting; the scrub goes on, `autoclave status` shows it", err=True)
        raise


async def follow(stream: AsyncIterator[views.ScrubProgress], devices: Devices, *, quiet: bool = False) -> Results:
    """The last message of each device, also if a time limit ends the stream. Shows the progress meanwhile."""
    results = {device: views.ScrubProgress(device, "", result=MISSING) for device in devices}
    try:
        with _shown(devices, quiet=quiet) as show:
            async for message in stream:
                show(message)
                results[message.device] = message if message.result else replace(message, result=MISSING)
    except NotReady as error:
        if error.reason is not Reason.TIMED_OUT:
            raise
        return {uuid: replace(it, result=OVERDUE) if it.result is MISSING else it for uuid, it in results.items()}
    return results


def report(results: Results, devices: Devices, output: str) -> int:
    """Print the results and return the exit code."""
    ordered = sorted(results.values(), key=lambda it: list(devices).index(it.device))
    if output == "table":
        table.show(table.RESULTS, table.results(ordered, devices))
    else:
        document.emit(document.listing("ScrubResult", [_item(it, devices) for it in ordered]), output)
    for it in ordered:
        if _code(it.result) != DONE:
            click.echo(f"autoclave: {_refusal(it, devices[it.device].name)}", err=True)
    return worst(_code(it.result) for it in ordered)


def named(devices: Sequence[views.DeviceStatus]) -> Devices:
    """The devices by UUID, in the given order."""
    return {device.device: device for device in devices}


def _item(it: views.ScrubProgress, devices: Devices) -> dict[str, object]:
    result = document.fields(it.result) if it.result else {}
    device = devices[it.device]
    return {"device": it.device, "index": device.index, "slice": device.slice, "job": it.job, **result}


def _code(result: views.ScrubResult | None) -> int:
    if result is OVERDUE:
        return LATE
    if result is None or not (result.clean or result.running or result.left_alone):
        return NOT_CLEAN
    return LEFT_ALONE if result.left_alone else DONE


def _refusal(it: views.ScrubProgress, name: str) -> str:
    why = (it.result.why or it.result.reason or it.result.state) if it.result else ""
    if it.result and it.result.left_alone:
        return human.printable(f"GPU {name} is {it.result.state} and left as it is: {why}")
    if it.result is OVERDUE:
        return human.printable(f"GPU {name} is not clean yet: {why}, `autoclave status {name}` shows it")
    return human.printable(f"GPU {name} is not clean: {why}; `autoclave explain {name}` shows the history")


@contextmanager
def _shown(devices: Devices, *, quiet: bool) -> Iterator[Callable[[views.ScrubProgress], None]]:
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with importlib.import_module("autoclave.cli.terminal").progress(devices) as show:
        yield show
