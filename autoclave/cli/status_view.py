"""The output of ``autoclave status``: a table, a document, and the faults of the service."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import click

from autoclave.cli import cells as render
from autoclave.cli import document, table
from autoclave.cli.custom_columns import Columns
from autoclave.cli.selection import Selection, in_trouble
from scrubber.core import views


@dataclass(frozen=True, slots=True)
class Form:
    """What ``autoclave status`` shows, and how. ``output`` is table, wide, json or yaml, or the columns to show."""

    selection: Selection
    output: str | Columns
    headers: bool = True


def for_people(output: str | Columns) -> bool:
    """Whether the output is a table that a person reads on a terminal."""
    return output in {"table", "wide"} and sys.stdout.isatty()


def show(status: views.Status, form: Form) -> None:
    """Print a status on stdout."""
    devices = form.selection.of(status.devices)
    if form.output in {"json", "yaml"}:
        document.emit(as_document(replace(status, devices=devices)), str(form.output))
        return
    if not devices and status.devices:
        click.echo("autoclave: no GPU matches", err=True)
        return
    table.show(*cells(devices, form))
    if for_people(form.output) and form.headers:
        click.echo(render.summary(devices, len(status.devices)))


def cells(devices: Sequence[views.DeviceStatus], form: Form) -> tuple[tuple[str, ...], list[list[str]]]:
    """Headers and rows. Without headers, the first are empty."""
    now = time.time()
    match form.output:
        case Columns() as columns:
            headers, rows = columns.headers, columns.cells(devices)
        case "wide":
            headers, rows = render.WIDE, render.wide(devices, now)
        case _:
            headers, rows = render.STATUS, render.status(devices, now)
    return headers if form.headers else (), rows


def page(devices: Sequence[views.DeviceStatus], total: int, form: Form, notes: Sequence[str]) -> table.Page:
    """What a screen shows of these devices, of ``total`` ones."""

    def below(shown: int) -> Iterator[str]:
        yield render.summary(devices, total)
        if shown < len(devices):
            yield f"below the end of the screen: {render.summary(devices[shown:], len(devices) - shown)}"

    urgent = sum(1 for _ in takewhile(in_trouble, devices))
    return table.Page(*cells(devices, form), urgent, below, notes)


def as_document(status: views.Status) -> dict[str, object]:
    """The stable JSON form: the devices and the service."""
    devices = document.listing("DeviceStatus", map(document.fields, status.devices))
    return {**devices, "service": document.fields(status.service)}


def faults(service: views.ServiceStatus) -> tuple[str, ...]:
    """The faults of the service itself."""
    ledger = f"the service cannot write the ledger, so it hands out no GPU: {service.ledger_fault}"
    policy = f"the newest policy is not in force; the service still uses the old one: {service.policy_fault}"
    aside = (
        f"a damaged ledger, with its quarantines, was set aside as {name}: read it with `autoclave ledger export`,"
        " then move it to another place"
        for name in service.set_aside
    )
    return (*([ledger] if service.ledger_fault else []), *([policy] if service.policy_fault else []), *aside)
