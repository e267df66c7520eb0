"""Sizes, durations and times for people, and text that is safe to print on a terminal."""

from __future__ import annotations

import re
import time
from datetime import datetime

import click

from ground import calendar_time
from ground.documents import units

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_AGO = re.compile(r"\s+ago$")
SHORTEST = 12  # shortest UUID prefix to show: "GPU-" and the first group


def say(*lines: str) -> None:
    """Print lines on stdout."""
    click.echo("\n".join(map(printable, lines)))


def warn(text: str) -> None:
    """Print a line about what is wrong, or went differently, on stderr."""
    click.echo(f"autoclave: {printable(text)}", err=True)


def hint(*remedies: str) -> None:
    """Print what a person can do about it, each on a line of its own, on stderr."""
    for remedy in remedies:
        warn(f"hint: {remedy}")


def printable(text: str) -> str:
    """The text with control characters escaped: a process name can hold codes that a terminal obeys."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def size(count: int) -> str:
    """Bytes in the largest unit in which the number is at least one."""
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


def ordinal(number: int) -> str:
    """A place in a queue, such as ``1st`` or ``12th``."""
    teen = number % 100 in {11, 12, 13}
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def took(seconds: float) -> str:
    """The duration of some work."""
    return f"{seconds:.2f}s" if seconds < 60 else span(seconds)  # noqa: PLR2004 - a minute


def local(moment: float) -> str:
    """A time in this machine's time zone, with the UTC offset."""
    return calendar_time.utc(moment).astimezone().isoformat(sep=" ", timespec="seconds")


def iso(moment: float) -> str:
    """A time in UTC, as in RFC 3339."""
    return calendar_time.utc(moment).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def since(text: str) -> float:
    """Parses ``10m`` (ago), ``2026-11-20 09:00`` (local time) or RFC 3339."""
    if units.DURATION.fullmatch(ago := _AGO.sub("", text)):
        return time.time() - units.parse_duration(ago)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError("10m, 2h or 7d (ago), 2026-11-20 09:00, or RFC 3339") from None


def shortened(names: list[str]) -> dict[str, str]:
    """For each UUID its shortest unique prefix. Verbs accept the prefix as a name."""
    for length in range(SHORTEST, max(map(len, names), default=0)):
        if len({name[:length] for name in names}) == len(set(names)):
            return {name: name[:length] for name in names}
    return {name: name for name in names}
