"""Converts dataclasses to JSON, and reads them back strictly: exactly these fields, each of its own type.

Input that does not match raises ValueError; no default is filled in. Workers import this module: it imports no library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum, EnumType
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


def encode(document: DataclassInstance, *, indent: int | None = None) -> bytes:
    """The document as a text that ends with a new line."""
    return json.dumps(document, indent=indent, default=_plain).encode() + b"\n"


def decode(kind: type[T], text: bytes | str) -> T:
    """The document in a text."""
    return build(kind, parse(text))


def parse(text: bytes | str) -> object:
    """The JSON value in a text. NaN, and a name that occurs twice in an object, are refused."""
    try:
        value: object = json.loads(text, object_pairs_hook=_object, parse_constant=_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def build(kind: type[T], value: object) -> T:
    """Build an instance of the dataclass from a JSON object."""
    return cast("T", _built(kind, value, ""))


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError(f"a name occurs twice among {', '.join(name for name, _ in pairs)}")
    return mapping


def _number(constant: str) -> float:
    """Infinity stands for a time that has no end. NaN compares as no other number does, so no check would find it."""
    if constant == "NaN":
        raise ValueError("NaN is not a number")
    return float(constant)


def _plain(value: object) -> object:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{value!r} cannot be stored as JSON")


@cache
def _types(kind: Any) -> Mapping[str, Any]:  # noqa: ANN401 - any dataclass
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _built(kind: Any, value: object, where: str) -> object:  # noqa: ANN401 - whatever an annotation can say
    """A value of this kind. ``where`` is its place in the document, such as ``.layout[0].start``."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _built_fields(cast("type", kind), value, where)
    if origin in (Union, UnionType):
        if value is None and type(None) in arguments:
            return None
        return _built(_chosen(kind, value, where), value, where)
    if origin in (tuple, frozenset):
        return origin(_built_items(kind, value, where))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _fault(kind, value, where)
        return {name: _built(arguments[1], item, f"{where}.{name}") for name, item in value.items()}
    if kind is object or (isinstance(kind, type) and _is_a(kind, value)):
        return value
    if isinstance(kind, EnumType):
        try:
            return kind(value)
        except ValueError as error:
            raise _fault(kind, value, where) from error
    if kind is float and _is_a(int, value):  # JSON has one kind of number
        return float(cast("int", value))
    raise _fault(kind, value, where)


def _chosen(union: Any, value: object, where: str) -> Any:  # noqa: ANN401 - see ``_built``
    """The one kind beside None; of several dataclasses the one that has exactly the fields of the value."""
    kinds = [kind for kind in get_args(union) if kind is not type(None)]
    if len(kinds) == 1:
        return kinds[0]
    fitting = [kind for kind in kinds if isinstance(value, dict) and value.keys() == _types(kind).keys()]
    if len(fitting) != 1:
        raise _fault(union, value, where)
    return fitting[0]


def _built_fields(kind: type, value: object, where: str) -> object:
    types = _types(kind)
    if not isinstance(value, dict) or value.keys() != types.keys():
        raise ValueError(f"{_at(where)}expected exactly the fields {', '.join(sorted(types))}")
    return kind(**{name: _built(of, value[name], f"{where}.{name}") for name, of in types.items()})


def _built_items(kind: Any, value: object, where: str) -> list[object]:  # noqa: ANN401 - see ``_built``
    if not isinstance(value, list):
        raise _fault(kind, value, where)
    of = get_args(kind)
    if get_origin(kind) is frozenset or of[-1] is ...:
        of = (of[0],) * len(value)
    if len(of) != len(value):
        raise _fault(kind, value, where)
    return [_built(one, item, f"{where}[{number}]") for number, (one, item) in enumerate(zip(of, value, strict=True))]


def _is_a(kind: type, value: object) -> bool:
    """A bool is an int in Python, but not in a document."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _fault(kind: Any, value: object, where: str) -> ValueError:  # noqa: ANN401 - see ``_built``
    words = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return ValueError(f"{_at(where)}expected {words}, got {value!r}")


def _at(where: str) -> str:
    return f"{where.removeprefix('.')}: " if where else ""
