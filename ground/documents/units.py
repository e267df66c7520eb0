"""Durations such as ``10s`` or ``5m``, and sizes such as ``64MiB``. A bare number has no unit and is refused."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

# Valid for Python and for JSON Schema: no named groups.
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
DURATION = re.compile(f"({_NUMBER})({'|'.join(SECONDS)})")
SIZE = re.compile(f"({_NUMBER})({'|'.join(BYTES)})")


def parse_duration(text: object) -> float:
    """The seconds of a duration such as ``250ms``, ``10s``, ``5m``, ``1h`` or ``7d``."""
    match = DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"a duration such as 10s or 5m (units: {', '.join(SECONDS)})")
    return float(match[1]) * SECONDS[match[2]]


def parse_size(text: object) -> int:
    """The bytes of a size such as ``64MiB``. A fraction of a byte is refused."""
    match = SIZE.fullmatch(text) if isinstance(text, str) else None
    count = Fraction(match[1]) * BYTES[match[2]] if match else None
    if count is None or count.denominator != 1:
        raise ValueError(f"a size of whole bytes such as 64MiB (units: {', '.join(BYTES)})")
    return count.numerator


def format_duration(seconds: float) -> str:
    """A duration in the largest unit that is exact, in the notation of a policy file."""
    for unit in reversed(SECONDS):
        number = int(seconds / SECONDS[unit])
        if number >= 1 and number * SECONDS[unit] == seconds:
            return f"{number}{unit}"
    return f"{Decimal(repr(seconds)).normalize():f}s"  # repr is exact and short; Decimal writes it without an exponent


def format_size(count: int) -> str:
    """A size in the largest unit that divides it."""
    for unit in reversed(BYTES):
        if count and count % BYTES[unit] == 0:
            return f"{count // BYTES[unit]}{unit}"
    return f"{count}B"
