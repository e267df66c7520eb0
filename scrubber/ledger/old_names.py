"""Names that ledgers of schema version 1 use, and the current names for the same things.

Stored rows are never rewritten, because the hash chain covers them. So old names are translated when a row is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

KINDS: Mapping[str, str] = MappingProxyType(
    {"exposed": "in-use", "heard": "errors-noted", "sickened": "ailment-found"}
)  # fmt: skip
"""Kinds of events."""

FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "kept": "until_release",
        "owed": "due_path",
        "sickness": "ailment",
        "test_begun": "burn_in_begun",
        "took": "fast_seconds",
        "visitor": "unannounced",
    }
)


def rename(text: str) -> str:
    """The same JSON with the current names; the text itself when it holds no old name or is not JSON."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    renamed = _renamed(value)
    return text if renamed == value else json.dumps(renamed, separators=(",", ":"), ensure_ascii=False)


def _renamed(value: object) -> object:
    if isinstance(value, list):
        return [_renamed(each) for each in value]
    if isinstance(value, dict):
        return {_field(name, each): _state(name, _renamed(each)) for name, each in value.items()}
    return value


def _field(name: str, value: object) -> str:
    if name == "ailment" and isinstance(value, str):  # version 1 called the kind of an ailment by this name
        return "kind"
    if name == "heard":  # a quarantine listed the errors, a record held the time of the last note
        return "errors" if isinstance(value, list) else "errors_noted"
    return FIELDS.get(name, name)


def _state(name: str, value: object) -> object:
    return "in_use" if name == "state" and value == "exposed" else value
