"""The id of an operation: short hex that a caller sends beside its request, for both logs and the ledger."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

KEY = "autoclave-op"  # the gRPC metadata that holds it
_ID = re.compile(r"[0-9a-fA-F]{4,32}")


def carried(op: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a request that is part of an operation, or of none."""
    return ((KEY, op),) if op else ()


def of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The caller's id; a fresh one where it sent none, or something else, which no log should have to bear."""
    given = next((value for key, value in metadata or () if key == KEY), "")
    return given if isinstance(given, str) and _ID.fullmatch(given) else uuid.uuid4().hex[:8]
