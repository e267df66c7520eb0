"""The output of ``autoclave status``: a table, a document, and the faults of the service."""

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
