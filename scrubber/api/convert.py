"""Converts views to protobuf and back, by field name. The views and ``scrub.proto`` have the same fields."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)
V = TypeVar("V")


def to_message(view: Any, message: M) -> M:  # noqa: ANN401 - any of the views
    """Fill a message from a view. A field that is None stays unset."""
    for name in _names(view.__class__):
        value = getattr(view, name)
        if value is not None:
            _fill(message, name, value)
    return message


def _fill(message: Message, name: str, value: Any) -> None:  # noqa: ANN401 - a value of any field
    if isinstance(value, tuple):
        _extend(getattr(message, name), value)
    elif _names(value.__class__):
        to_message(value, getattr(message, name))
        getattr(message, name).SetInParent()
    else:
        setattr(message, name, value)


def _extend(repeated: Any, values: Iterable[Any]) -> None:  # noqa: ANN401 - a value of any field
    for value in values:
        if _names(value.__class__):
            to_message(value, repeated.add())
        else:
            repeated.append(value)


@cache
def _names(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - any type
    """The field names of a view, empty for other types. Cached, because every conversion needs them."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def from_message(kind: type[V], message: Message) -> V:
    """The view in a message. An optional field that is unset becomes None."""
    return kind(**{name: read(message) for name, read in _readers(cast("Any", kind))})


@cache
def _readers(kind: Any) -> tuple[tuple[str, Callable[[Message], Any]], ...]:  # noqa: ANN401 - any of the views
    """One reader for each field. Cached, because type hints take longer to look up than the rest of a conversion."""
    hints = get_type_hints(kind)
    return tuple((field.name, _reader(field.name, hints[field.name])) for field in fields(cast("Any", kind)))


def _reader(name: str, hint: Any) -> Callable[[Message], Any]:  # noqa: ANN401 - the hint of any field
    value = attrgetter(name)
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        if not is_dataclass(inner):
            return lambda message: tuple(value(message))
        return lambda message: tuple([from_message(inner, item) for item in value(message)])
    if get_origin(hint) in (Union, types.UnionType):
        inner = next(arg for arg in get_args(hint) if arg is not type(None))
        read = _reader(name, inner)
        return lambda message: read(message) if message.HasField(name) else None
    if is_dataclass(hint):
        view: type[Any] = cast("Any", hint)
        return lambda message: from_message(view, value(message))
    return value
