"""Values as a person reads them: sizes, durations, times, and text that a terminal cannot be tricked with."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from policies import units

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_AGO = re.compile(r"\s+ago$")
SHORTEST = 12  # characters of a UUID that are shown at least: "GPU-" and a group


def printable(text: str) -> str:
    """Text on one line that is only text: process names come from tenants, and a terminal obeys what it is sent."""
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)


def size(count: int) -> str:
    """Bytes in the largest unit that leaves a number of one or more."""
    amount, unit = float(count), "B"
    for unit in units.BYTES:
        if abs(amount) < 1024 or unit == "TiB":  # noqa: PLR2004 - one step between two units
            break
        amount /= 1024
    return f"{amount:.0f}{unit}" if amount == int(amount) else f"{amount:.1f}{unit}"


def span(seconds: float) -> str:
    """A duration in its largest unit, as ``kubectl`` writes ages."""
    whole = max(0, int(seconds))
    return next((f"{whole // length}{unit}" for length, unit in _UNITS if whole >= length), "0s")


def took(seconds: float) -> str:
    """How long some work took."""
    return f"{seconds:.2f}s" if seconds < 60 else span(seconds)  # noqa: PLR2004 - a minute


def local(moment: float) -> str:
    """A time on this machine's clock, with its offset, so that it can be compared with other machines' logs."""
    return datetime.fromtimestamp(moment, UTC).astimezone().isoformat(sep=" ", timespec="seconds")


def iso(moment: float) -> str:
    """A time for machines: UTC, RFC 3339."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def since(text: str) -> float:
    """A moment from ``10m`` (ago), ``2026-11-20 09:00`` (this machine's clock) or RFC 3339."""
    if units.DURATION.fullmatch(ago := _AGO.sub("", text)):
        return time.time() - units.parse_duration(ago)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError("expected 10m, 2h or 7d (ago), 2026-11-20 09:00, or RFC 3339") from None


def shortened(names: list[str]) -> dict[str, str]:
    """For each UUID the shortest beginning that no other has; it can be typed back."""
    for length in range(SHORTEST, max(map(len, names), default=0)):
        if len({name[:length] for name in names}) == len(set(names)):
            return {name: name[:length] for name in names}
    return {name: name for name in names}
