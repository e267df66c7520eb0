"""``-o custom-columns=HEADER:FIELD,...``: a table of the columns that a person names, in the form of kubectl."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import reduce
from typing import Any, Union, get_args, get_origin, get_type_hints

from autoclave.cli import document
from scrubber.core import views

PREFIX = "custom-columns="


@dataclass(frozen=True, slots=True)
class Columns:
    """The headers, and for each header the field of ``-o json`` below it."""

    headers: tuple[str, ...]
    fields: tuple[str, ...]

    def cells(self, devices: Sequence[views.DeviceStatus]) -> list[list[str]]:
        """One row for each device. A missing value is an empty cell."""
        documents = [{"name": device.name, **document.fields(device)} for device in devices]
        return [[_cell(reduce(_inside, field.split("."), it)) for field in self.fields] for it in documents]


def parse(spec: str) -> Columns:
    """Parse ``GPU:.name,RECEIPT:.receipt.id``."""
    columns = [part.partition(":") for part in spec.split(",")]
    if not all(header.strip() and field.strip() for header, _, field in columns):
        raise ValueError(f"expected {PREFIX}HEADER:FIELD,..., as in {PREFIX}GPU:.name,RECEIPT:.receipt.id")
    known = ["name", *_leaves(views.DeviceStatus)]
    named = [field.strip().removeprefix(".") for _, _, field in columns]
    if unknown := [field for field in named if field not in known]:
        raise ValueError(f"there is no field {unknown[0]}; the fields are {', '.join(known)}")
    return Columns(tuple(header.strip() for header, _, _ in columns), tuple(named))


def _leaves(view: Any) -> Iterator[str]:  # noqa: ANN401 - any of the views
    """The paths of all fields of a view that are no views themselves."""
    hints = get_type_hints(view)
    for field in fields(view):
        kind = _kind(hints[field.name])
        if is_dataclass(kind):
            yield from (f"{field.name}.{leaf}" for leaf in _leaves(kind))
        elif not any(map(is_dataclass, get_args(kind))):  # a list of views is no cell
            yield field.name


def _kind(hint: Any) -> Any:  # noqa: ANN401 - the hint of any field
    """The type of a field that is not missing."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    return next(kind for kind in get_args(hint) if kind is not type(None))


def _inside(outer: Any, name: str) -> Any:  # noqa: ANN401 - a value of any field
    return None if outer is None else outer[name]


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case list():
            return ",".join(map(str, value))
    return str(value)
