"""Wall times as dates."""

from __future__ import annotations

from datetime import UTC, datetime

# The first and last days that have a date in every time zone.
_FIRST = datetime(1, 1, 2, tzinfo=UTC).timestamp()
_LAST = datetime(9999, 12, 30, tzinfo=UTC).timestamp()


def utc(wall: float) -> datetime:
    """The date of a wall time, in UTC. A time that has none becomes the first or the last that has one.

    A clock may be set wrongly, and the service must start all the same.
    """
    return datetime.fromtimestamp(min(max(wall, _FIRST), _LAST), UTC)
