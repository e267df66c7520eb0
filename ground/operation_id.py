"""The id of an operation: short hex that a caller sends with its request, for both logs and the ledger."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

KEY = "autoclave-op"  # the gRPC metadata key
_ID = re.compile(r"[0-9a-fA-F]{4,32}")


def new() -> str:
    """A fresh id."""
    return uuid.uuid4().hex[:8]


def to_metadata(op: str) -> tuple[tuple[str, str], ...]:
    """The gRPC metadata for an operation; empty for an empty id."""
    return ((KEY, op),) if op else ()


def from_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The caller's id, or a fresh one if the caller sent none or one that does not fit into a log."""
    given = next((value for key, value in metadata or () if key == KEY), "")
    return given if isinstance(given, str) and _ID.fullmatch(given) else new()
