"""``autoclave status``: which GPUs, in which order, as a table or a document, once or live.

The live view of ``--watch`` is drawn in place on a terminal. Elsewhere it is one table for each change. It survives a
restart of the service.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click

from autoclave.cli import ENVIRONMENT, options, service_call
from autoclave.cli.output import document, human, text_tables
from ground.errors import NotReady, Unreachable, joined
from ground.quantities import LITTLE_ROOM
from scrub_api import admin_client, views


def in_trouble(device: views.DeviceStatus) -> bool:
    """Whether the device is unhealthy, and not only because of a scrub."""
    return not device.healthy and (device.quarantine is not None or device.job is None)


def _trouble(device: views.DeviceStatus) -> tuple[int, int]:
    """Quarantined GPUs, then others in trouble, then those that are unhealthy only because of a scrub."""
    if in_trouble(device):
        return (0 if device.quarantine is not None else 1), 0
    return (3, 0) if device.healthy or device.job is None else (2, device.job.queue_place or 0)


ORDERS: Mapping[str, Callable[[views.DeviceStatus], Any]] = {
    "trouble": _trouble,
    "gpu": lambda _: 0,
    "state": lambda device: device.state,
    "for": lambda device: -device.since,
    "memory": lambda device: device.memory_bytes,
    "pci": lambda device: device.pci_address,
    "owner": lambda device: device.pod or device.owner,
    "model": lambda device: device.model,
}
"""What ``--sort-by`` can name. GPUs that are equal keep their order: the service sorts by index."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The filters of ``status``, and its order."""

    states: frozenset[str] = frozenset()  # empty: any state
    unhealthy: bool = False
    order: str = "gpu"

    def of(self, devices: Sequence[views.DeviceStatus]) -> tuple[views.DeviceStatus, ...]:
        """The devices that pass all filters, in order."""
        wanted = [
            device
            for device in devices
            if (not self.states or device.state in self.states) and not (self.unhealthy and device.healthy)
        ]
        return tuple(sorted(wanted, key=ORDERS[self.order]))


@dataclass(frozen=True, slots=True)
class Form:
    """What ``autoclave status`` shows, and how. ``output`` is table, wide, csv, json or yaml."""

    selection: Selection
    output: str
    headers: bool = True


def for_people(output: str) -> bool:
    """Whether the output is a table that a person reads on a terminal."""
    return output in {"table", "wide"} and sys.stdout.isatty()


def show(status: views.Status, form: Form) -> None:
    """Print a status on stdout."""
    devices = form.selection.of(status.devices)
    if form.output in {"json", "yaml"}:
        document.emit(as_document(replace(status, devices=devices)), form.output)
        return
    if not devices and status.devices:
        human.warn("no GPU matches")
        return
    document.show_table(*cells(devices, form), form.output)
    if for_people(form.output) and form.headers:
        click.echo(text_tables.summary(devices, len(status.devices)))
        if fence := text_tables.fence(devices, status.service.fence_lacks):
            click.echo(fence)


def cells(devices: Sequence[views.DeviceStatus], form: Form) -> tuple[tuple[str, ...], list[list[str]]]:
    """Headers and rows. Without headers, the first are empty."""
    if form.output in {"wide", "csv"}:
        return text_tables.WIDE if form.headers else (), text_tables.wide(devices, time.time())
    return text_tables.STATUS if form.headers else (), text_tables.status(devices, time.time())


def page(
    devices: Sequence[views.DeviceStatus], total: int, form: Form, notes: Sequence[str], fence_lacks: str
) -> text_tables.Page:
    """What a screen shows of these devices, of ``total`` ones."""

    def below(shown: int) -> Iterator[str]:
        yield text_tables.summary(devices, total)
        if fence := text_tables.fence(devices, fence_lacks):
            yield fence
        if shown < len(devices):
            yield f"below the end of the screen: {text_tables.summary(devices[shown:], len(devices) - shown)}"

    urgent = sum(1 for _ in takewhile(in_trouble, devices))
    return text_tables.Page(*cells(devices, form), urgent, below, notes)


def as_document(status: views.Status) -> dict[str, object]:
    """The stable JSON form: the devices and the service."""
    devices = document.listing("DeviceStatus", map(document.fields, status.devices))
    return {**devices, "service": document.fields(status.service)}


def faults(service: views.ServiceStatus) -> tuple[str, ...]:
    """The faults of the service itself."""
    ledger = (
        "the service cannot write the ledger, so it hands out no GPU and cannot record what happens to GPUs now:"
        f" {joined(service.ledger_fault, *service.ledger_remedies)}"
    )
    wrong = "; ".join(service.policy_fault.splitlines())
    policy = f"the newest policy is not in force; the service still uses the old one: {wrong}"
    aside = (
        f"a damaged ledger, with its quarantines, was set aside as {name}: read it with `autoclave ledger export`,"
        " then move it to another place"
        for name in service.set_aside
    )
    return (*([ledger] if service.ledger_fault else []), *([policy] if service.policy_fault else []), *aside)


def little_room(service: views.ServiceStatus) -> Iterator[str]:
    """That the disk of the ledger is nearly full, before a write fails. Nothing where its directory is not seen."""
    state_dir = service.state_dir
    try:
        system = os.statvfs(state_dir)
    except OSError:
        return
    if service.ledger_fault:
        return
    if system.f_bavail * system.f_frsize < LITTLE_ROOM:
        left = human.size(system.f_bavail * system.f_frsize)
        yield f"the ledger has room for only {left}; make room in {state_dir}, or no GPU is handed out when it is full"


TICK = 1.0  # seconds between two updates on a terminal, where ages and progress change without an event


async def follow(admin: admin_client.AdminClient, gpus: Sequence[str], form: Form) -> None:
    """Show the status until the user stops it."""
    if for_people(form.output):
        await _live(admin, gpus, form)
    else:
        await _print(admin, gpus, form)


async def _live(admin: admin_client.AdminClient, gpus: Sequence[str], form: Form) -> None:
    devices: tuple[views.DeviceStatus, ...] = ()
    total, fence_lacks = 0, ""
    with importlib.import_module("autoclave.cli.output.terminal_tables").live_view() as show:
        async for answer in _answers(admin, gpus, TICK):
            if answer:
                devices, total = form.selection.of(answer.devices), len(answer.devices)
                fence_lacks = answer.service.fence_lacks
            notes = faults(answer.service) if answer else (service_call.RETRYING,)
            show(page(devices, total, form, notes, fence_lacks))


async def _print(admin: admin_client.AdminClient, gpus: Sequence[str], form: Form) -> None:
    shown: tuple[views.DeviceStatus, ...] | None = None
    unreachable = False
    async for answer in _answers(admin, gpus, service_call.QUIET):
        if answer is None:
            if not unreachable:
                human.warn(service_call.RETRYING)
            unreachable = True
            continue
        unreachable = False
        stable = tuple(map(_without_progress, form.selection.of(answer.devices)))
        if stable != shown:
            show(answer, form)
            sys.stdout.flush()
        shown = stable


async def _answers(
    admin: admin_client.AdminClient, gpus: Sequence[str], wait: float
) -> AsyncIterator[views.Status | None]:
    """Each new status; None while the service cannot be reached. The first request must succeed."""
    answer: views.Status | None = await admin.status(gpus)
    while True:
        yield answer
        try:
            seen = answer.service.ledger_rows if answer else 0
            answer = await admin.status(gpus, newer_than=seen, wait=wait if answer else 0.0)
        except (Unreachable, NotReady):
            answer = None
            await asyncio.sleep(service_call.RETRY)


def _without_progress(device: views.DeviceStatus) -> views.DeviceStatus:
    """The device without the fields that change all the time. A change of the rest prints a new table."""
    job = device.job
    if job is not None:
        still = views.STALLED if job.stalled else None
        job = replace(job, done_bytes=0, total_bytes=0, queue_place=None, still_seconds=still)
        job = replace(job, step_seconds=None, ready_seconds=None)
    quarantine = replace(device.quarantine, next_probe_seconds=None) if device.quarantine else None
    return replace(device, job=job, quarantine=quarantine)


class Filters(TypedDict):
    """The flags that select GPUs."""

    state: tuple[str, ...]
    unhealthy: bool
    sort_by: str | None


@click.command(context_settings=ENVIRONMENT)
@options.gpus
@click.option(
    "--state",
    type=click.Choice(text_tables.STATES),
    multiple=True,
    help="Only GPUs in this state; may be repeated.",
)
@click.option("--unhealthy", is_flag=True, help="Only GPUs that are not healthy.")
@click.option(
    "--sort-by",
    type=click.Choice(list(ORDERS)),
    help="The order; by default trouble for a table on a terminal, gpu elsewhere.",
)
@options.output("table", "wide", "csv", "json", "yaml")
@click.option("--no-headers", is_flag=True, help="Print a table without headers and without the line of totals.")
@click.option("-w", "--watch", is_flag=True, help="Keep running and show every change.")
@options.run_dir
def status(
    gpus: tuple[str, ...],
    output: str,
    no_headers: bool,
    watch: bool,
    run_dir: Path,
    **filters: Unpack[Filters],
) -> None:
    """Show the state of GPUs, and why.

    On a terminal, the table begins with the GPUs in trouble and ends with a line of totals. A pipe gets neither. csv
    has the columns of wide.
    """
    order = filters["sort_by"] or ("trouble" if for_people(output) else "gpu")
    chosen = Selection(frozenset(filters["state"]), filters["unhealthy"], order)
    form = Form(chosen, output, headers=not no_headers)
    if watch:
        service_call.ask(run_dir, lambda admin: follow(admin, gpus, form))
        return
    status = service_call.ask(run_dir, lambda admin: admin.status(gpus))
    show(status, form)
    for fault in (*faults(status.service), *little_room(status.service)):
        human.warn(fault)
