"""What ``autoclave status`` shows, once or again and again: a status as a table, as a document, and its faults."""

from __future__ import annotations

import time

from scrubber.cli import cells as render
from scrubber.cli import document, table
from scrubber.core import views


def show(status: views.Status, output: str) -> None:
    """Print a status on stdout."""
    if output in {"json", "yaml"}:
        document.emit(as_document(status), output)
    else:
        table.show(*cells(status, output))


def cells(status: views.Status, output: str) -> tuple[tuple[str, ...], list[list[str]]]:
    """Headers and rows."""
    now = time.time()
    if output == "wide":
        return render.WIDE, render.wide(status.devices, now)
    return render.STATUS, render.status(status.devices, now)


def as_document(status: views.Status) -> dict[str, object]:
    """The stable form, with the service beside its devices."""
    devices = document.listing("DeviceStatus", map(document.fields, status.devices))
    return {**devices, "service": document.fields(status.service)}


def faults(service: views.ServiceStatus) -> tuple[str, ...]:
    """What is wrong with the service itself."""
    ledger = f"the ledger cannot be written, so nothing is handed out: {service.ledger_fault}"
    policy = f"the newest policy is not in force, the old one is: {service.policy_fault}"
    aside = (
        f"a damaged ledger was set aside as {name}, and quarantines with it: read it with `autoclave ledger export`,"
        " then move it away"
        for name in service.set_aside
    )
    return (*([ledger] if service.ledger_fault else []), *([policy] if service.policy_fault else []), *aside)
