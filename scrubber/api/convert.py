"""Values to protobuf and back, by field name: the views and ``scrub.proto`` say the same things in the same words."""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)
V = TypeVar("V")

_KNOWN_HINTS: dict[str, dict[str, Any]] = {}


def to_message(view: Any, message: M) -> M:  # noqa: ANN401 - any of the views
    """Fill a message from a view. What is None stays unset."""
    for field in fields(view):
        _fill(message, field.name, getattr(view, field.name))
    return message


def _fill(message: Message, name: str, value: Any) -> None:  # noqa: ANN401 - a value of any field
    if value is None:
        return
    if is_dataclass(value):
        to_message(value, getattr(message, name))
        getattr(message, name).SetInParent()
    elif isinstance(value, tuple):
        _extend(getattr(message, name), value)
    else:
        setattr(message, name, value)


def _extend(repeated: Any, values: Iterable[Any]) -> None:  # noqa: ANN401 - a value of any field
    for value in values:
        if is_dataclass(value):
            to_message(value, repeated.add())
        else:
            repeated.append(value)


def from_message(kind: type[V], message: Message) -> V:
    """The view that a message carries. What is unset and may be None is None."""
    return kind(**{name: _read(message, name, hint) for name, hint in _hints(kind.__name__, kind).items()})


def _hints(name: str, kind: type[object]) -> dict[str, Any]:
    """Looked up once a view: it takes longer than all the rest of a conversion."""
    if name not in _KNOWN_HINTS:
        _KNOWN_HINTS[name] = get_type_hints(kind)
    return _KNOWN_HINTS[name]


def _read(message: Message, name: str, hint: Any) -> Any:  # noqa: ANN401 - a value of any field
    value = getattr(message, name)
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return tuple(_plain(inner, item) for item in value)
    if get_origin(hint) in (Union, types.UnionType):
        inner = next(arg for arg in get_args(hint) if arg is not type(None))
        return _plain(inner, value) if message.HasField(name) else None
    return _plain(hint, value)


def _plain(hint: type[Any], value: Any) -> Any:  # noqa: ANN401 - a value of any field
    view: type[Any] = hint
    return from_message(view, value) if is_dataclass(hint) else value
