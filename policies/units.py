"""Durations as ``10s`` or ``5m``, sizes as ``64MiB``: a bare number has no unit and is refused."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

# Written so that it means the same to Python and to JSON Schema: groups are counted, not named.
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
DURATION = re.compile(f"({_NUMBER})({'|'.join(SECONDS)})")
SIZE = re.compile(f"({_NUMBER})({'|'.join(BYTES)})")


def parse_duration(text: object) -> float:
    """Seconds in a duration such as ``250ms``, ``10s``, ``5m``, ``1h`` or ``7d``."""
    match = DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"expected a duration such as 10s or 5m (units: {', '.join(SECONDS)})")
    return float(match[1]) * SECONDS[match[2]]


def parse_size(text: object) -> int:
    """Bytes in a size such as ``64MiB``; a part of a byte is no size."""
    match = SIZE.fullmatch(text) if isinstance(text, str) else None
    count = Fraction(match[1]) * BYTES[match[2]] if match else None
    if count is None or count.denominator != 1:
        raise ValueError(f"expected a size of whole bytes such as 64MiB (units: {', '.join(BYTES)})")
    return count.numerator


def format_duration(seconds: float) -> str:
    """The largest unit that says it exactly, so that what is shown can be pasted back into a policy."""
    for unit in reversed(SECONDS):
        number = int(seconds / SECONDS[unit])
        if number >= 1 and number * SECONDS[unit] == seconds:
            return f"{number}{unit}"
    return f"{Decimal(repr(seconds)).normalize():f}s"  # repr is exact and short; Decimal spells it without an exponent


def format_size(count: int) -> str:
    """The largest unit that divides the size."""
    for unit in reversed(BYTES):
        if count and count % BYTES[unit] == 0:
            return f"{count // BYTES[unit]}{unit}"
    return f"{count}B"
