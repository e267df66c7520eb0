"""``status --watch``: a live view on a terminal, one table per change elsewhere. Survives a service restart."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import click

from autoclave.cli import status_view
from scrubber.api import client
from scrubber.core import views
from scrubber.ground.errors import NotReady, Unreachable

TICK = 1.0  # seconds between two updates on a terminal, where ages and progress change without an event
QUIET = 30.0  # seconds to wait for an event elsewhere
RETRY = 0.5
UNREACHABLE = "service not reachable, retrying"


async def watch(admin: client.AdminClient, gpus: Sequence[str], form: status_view.Form) -> None:
    """Show the status until the user stops it."""
    if status_view.for_people(form.output):
        await _live(admin, gpus, form)
    else:
        await _print(admin, gpus, form)


async def _live(admin: client.AdminClient, gpus: Sequence[str], form: status_view.Form) -> None:
    devices: tuple[views.DeviceStatus, ...] = ()
    total = 0
    with importlib.import_module("autoclave.cli.terminal").view() as show:
        async for answer in _answers(admin, gpus, TICK):
            if answer:
                devices, total = form.selection.of(answer.devices), len(answer.devices)
            notes = status_view.faults(answer.service) if answer else (UNREACHABLE,)
            show(status_view.page(devices, total, form, notes))


async def _print(admin: client.AdminClient, gpus: Sequence[str], form: status_view.Form) -> None:
    shown: tuple[views.DeviceStatus, ...] | None = None
    unreachable = False
    async for answer in _answers(admin, gpus, QUIET):
        if answer is None:
            if not unreachable:
                click.echo(f"autoclave: {UNREACHABLE}", err=True)
            unreachable = True
            continue
        unreachable = False
        stable = tuple(map(_without_progress, form.selection.of(answer.devices)))
        if stable != shown:
            status_view.show(answer, form)
            sys.stdout.flush()
        shown = stable


async def _answers(admin: client.AdminClient, gpus: Sequence[str], wait: float) -> AsyncIterator[views.Status | None]:
    """Each new status; None while the service cannot be reached. The first request must succeed."""
    answer: views.Status | None = await admin.status(gpus)
    while True:
        yield answer
        try:
            seen = answer.service.ledger_rows if answer else 0
            answer = await admin.status(gpus, newer_than=seen, wait=wait if answer else 0.0)
        except (Unreachable, NotReady):
            answer = None
            await asyncio.sleep(RETRY)


def _without_progress(device: views.DeviceStatus) -> views.DeviceStatus:
    """The device without the fields that change all the time. A change of the rest prints a new table."""
    job = replace(device.job, done_bytes=0, total_bytes=0, queue_place=None) if device.job else None
    quarantine = replace(device.quarantine, next_probe_seconds=None) if device.quarantine else None
    return replace(device, job=job, quarantine=quarantine)
