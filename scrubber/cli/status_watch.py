"""``status --watch``: a view that lives on a terminal, one table per change elsewhere. It outlives the service."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import click

from scrubber.api import client
from scrubber.cli import status_view
from scrubber.core import views
from scrubber.ground.errors import NotReady, Unreachable

TICK = 1.0  # seconds between two looks at a terminal, where ages and bytes move without an event
QUIET = 30.0  # seconds that are waited for an event elsewhere
RETRY = 0.5
AWAY = "service not reachable, retrying"


async def watch(admin: client.AdminClient, gpus: Sequence[str], output: str) -> None:
    """Show the status until somebody has seen enough."""
    if output in {"table", "wide"} and sys.stdout.isatty():
        await _live(admin, gpus, output)
    else:
        await _print(admin, gpus, output)


async def _live(admin: client.AdminClient, gpus: Sequence[str], output: str) -> None:
    last: views.Status | None = None
    terminal = importlib.import_module("scrubber.cli.terminal")
    with terminal.view() as show:
        async for answer in _answers(admin, gpus, TICK):
            last = answer or last
            notes = [] if answer else [AWAY]
            notes += status_view.faults(answer.service) if answer else ()
            seen = [terminal.drawn(*status_view.cells(last, output))] if last else []
            show(seen, notes)


async def _print(admin: client.AdminClient, gpus: Sequence[str], output: str) -> None:
    shown: tuple[views.DeviceStatus, ...] | None = None
    away = False
    async for answer in _answers(admin, gpus, QUIET):
        if answer is None:
            if not away:
                click.echo(f"autoclave: {AWAY}", err=True)
            away = True
            continue
        away = False
        lasting = tuple(map(_lasting, answer.devices))
        if lasting != shown:
            status_view.show(answer, output)
            sys.stdout.flush()
        shown = lasting


async def _answers(admin: client.AdminClient, gpus: Sequence[str], wait: float) -> AsyncIterator[views.Status | None]:
    """Each status as soon as there is another one; None when the service is away. It must have been there once."""
    answer: views.Status | None = await admin.status(gpus)
    while True:
        yield answer
        try:
            seen = answer.service.ledger_rows if answer else 0
            answer = await admin.status(gpus, newer_than=seen, wait=wait if answer else 0.0)
        except (Unreachable, NotReady):
            answer = None
            await asyncio.sleep(RETRY)


def _lasting(device: views.DeviceStatus) -> views.DeviceStatus:
    """A device without what moves by itself: only the rest is a change worth a table."""
    job = replace(device.job, done_bytes=0, total_bytes=0) if device.job else None
    quarantine = replace(device.quarantine, next_probe_seconds=None) if device.quarantine else None
    return replace(device, job=job, quarantine=quarantine)
