"""``-o json``, ``yaml``, ``csv``: documents of devices and events, a stable contract.

Every document has ``apiVersion`` and ``kind``; a list has ``items``. Fields are those of ``scrub_api.views``. In a
ScrubResult, ``clean`` says that this command has a proof; ``state`` is the state of the GPU now. After a refusal,
``why`` is its cause and ``remedies`` say what to do. Times (the names in ``TIMES``) are RFC 3339 in UTC, durations are
seconds, sizes are bytes. A missing text is empty; any other missing value is null.
"""

from __future__ import annotations

import csv
import importlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from autoclave.cli.output import human, text_tables
from scrub_api import views

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

API_VERSION = "autoclave/v1"
TIMES = frozenset({"at", "since", "started", "finished", "history_since", "steps_since"})


def single(kind: str, fields: Mapping[str, object]) -> dict[str, object]:
    """A document about one thing."""
    return {"apiVersion": API_VERSION, "kind": kind, **fields}


def listing(kind: str, items: Iterable[object]) -> dict[str, object]:
    """A document with a list of items of one kind."""
    return single(f"{kind}List", {"items": list(items)})


def fields(view: DataclassInstance) -> dict[str, object]:
    """A view as plain data."""
    return {name: _plain(name, value) for name, value in asdict(view).items()}


def gpu(device: views.DeviceStatus) -> dict[str, object]:
    """Which GPU an item is about."""
    return {"device": device.device, "index": device.index, "slice": device.slice}


def entry(row: views.HistoryEntry) -> dict[str, object]:
    """A row of the ledger, with the event as data instead of JSON text."""
    return {**fields(row), "body": json.loads(row.body)}


def explanation(explained: views.Explanation) -> dict[str, object]:
    """An explanation, with its entries in the form of ``entry``."""
    return {**fields(explained), "entries": [entry(row) for row in explained.entries]}


def emit(document: Mapping[str, object], output: str) -> None:
    """Print the document on stdout."""
    if output == "yaml":
        yaml = importlib.import_module("ruamel.yaml").YAML(pure=True)  # slow to import, and rarely used
        yaml.explicit_start = True  # so that a watch is a stream of documents
        yaml.width = 4096  # one line for each value, for grep
        yaml.dump(document, sys.stdout)
    else:
        click.echo(json.dumps(document, indent=2))


def emit_line(document: Mapping[str, object]) -> None:
    """Print the document on one line, for JSON Lines."""
    click.echo(json.dumps(document))


def emit_csv(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as csv on stdout. Without headers, only the rows."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    cells = ([_cell(value) for value in row] for row in rows)
    writer.writerows([headers, *cells] if headers else cells)


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"  # as in JSON
    return human.printable(value) if isinstance(value, str) else value


def show_table(headers: Sequence[str], rows: text_tables.Rows, output: str = "table") -> None:
    """Print a table on stdout: drawn on a terminal, as text elsewhere, or as csv. Without headers, only its rows."""
    if output == "csv":
        emit_csv([name.lower() for name in headers], rows)
        return
    if not headers and not rows:
        return
    if sys.stdout.isatty():
        importlib.import_module("autoclave.cli.output.terminal_tables").show(headers, rows)
    else:
        click.echo(text_tables.plain(headers, rows))


def _plain(name: str, value: object) -> object:
    match value:
        case dict():
            return {key: _plain(key, each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(name, each) for each in value]
        case float() if name in TIMES:
            return human.iso(value)
    return value
