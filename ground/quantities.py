"""Numbers with their nouns, wall times as dates, and a number that several rooms judge by."""

from __future__ import annotations

from datetime import UTC, datetime

LITTLE_ROOM = 100 * 2**20  # bytes: with less, the disk of the ledger is nearly full

# The first and last days that have a date in every time zone.
_FIRST = datetime(1, 1, 2, tzinfo=UTC).timestamp()
_LAST = datetime(9999, 12, 30, tzinfo=UTC).timestamp()


def quantity(count: int, one: str, many: str = "") -> str:
    """``1 byte``, ``2 bytes``. ``many`` is what follows each number but 1; by default ``one`` with an s."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def utc(wall: float) -> datetime:
    """The date of a wall time, in UTC. A time that has none becomes the first or the last that has one.

    A clock may be set wrongly, and the service must start all the same.
    """
    return datetime.fromtimestamp(min(max(wall, _FIRST), _LAST), UTC)
