"""SQL for the newest entries: a ``Window`` of kinds, times and warnings, and which rows a ledger has kept."""

from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import dataclass
from typing import NamedTuple

from scrubber.core.events import LedgerEntry, ServiceStarted
from scrubber.core.standstills import CLOCK_MOVED
from scrubber.ledger import database, ledger_rows

_FROM_THE_NEWEST = """
    SELECT {columns} FROM {table}
    WHERE kind NOT IN ('ledger-begun', 'ledger-compacted', 'receipt-key', 'ledger-taken-over') {conditions}
    ORDER BY seq DESC
"""
_CONDITIONS = """
    AND (?1 IS NULL OR device = ?1) AND (?2 IS NULL OR wall >= ?2 OR seq >= ?8) AND (?7 IS NULL OR wall <= ?7)
    AND seq > ?4 AND (?5 IS NULL OR seq < ?5) AND (?6 IS NULL OR kind IN (SELECT value FROM json_each(?6)))
"""
_NEWEST = _FROM_THE_NEWEST + "LIMIT ?3"
_NEWEST_ENTRIES = _NEWEST.format(columns=database.COLUMNS, table="entries", conditions=_CONDITIONS)
_NEWEST_EVIDENCE = _NEWEST.format(columns=database.COLUMNS, table="evidence", conditions=_CONDITIONS)
_NEWEST_WARNINGS = _NEWEST_EVIDENCE.replace("WHERE", "WHERE warning AND")
_CLOCKS = _FROM_THE_NEWEST.format(columns="seq, uptime, wall - uptime, kind = ?", table="entries", conditions="")


@dataclass(frozen=True, slots=True)
class Window:
    """Which rows of the history are asked for. ``before`` None: up to the newest. No ``kinds``: events of each kind."""

    before: int | None = None
    after: int = 0
    kinds: frozenset[str] = frozenset()
    until: float | None = None  # a wall time
    warnings: bool = False  # leave out evidence that is not a warning; the caller leaves out other rows
    uptime: float | None = None  # the asked ``since`` on the clock of this boot: the wall clock may have jumped


EVERYTHING = Window()


@dataclass(frozen=True, slots=True)
class Kept:
    """From which wall time on the ledger has rows, and from when on it has the steps of scrubs; 0: none has gone."""

    since: float = 0.0
    steps_since: float = 0.0


class HistoryPage(NamedTuple):
    """Entries of the history, newest last. ``partial``: older ones may be missing, because the disk did not answer."""

    entries: tuple[LedgerEntry, ...]
    partial: bool = False


def newest_entries(
    connection: sqlite3.Connection, device: str | None, since: float | None, limit: int, window: Window
) -> tuple[LedgerEntry, ...]:
    """The newest events, newest last. All evidence is older than all other rows."""
    kinds = json.dumps(sorted(window.kinds)) if window.kinds else None
    first = _first_since(connection, window.uptime)
    newest: list[tuple[object, ...]] = []
    for statement in (_NEWEST_ENTRIES, _NEWEST_WARNINGS if window.warnings else _NEWEST_EVIDENCE):
        wanted = (device, since, limit - len(newest), window.after, window.before, kinds, window.until, first)
        newest += connection.execute(statement, wanted)
    return ledger_rows.entries(database.row_of(columns) for columns in reversed(newest))


def _first_since(connection: sqlite3.Connection, uptime: float | None) -> int | None:
    """The number of the first row of this boot that is not older; None without such a row."""
    first, later, started = None, math.inf, None
    if uptime is None:
        return None
    for seq, at, boot, starts in connection.execute(_CLOCKS, (ledger_rows.KINDS[ServiceStarted],)):
        if not uptime <= at <= later:  # an uptime that is greater is of an earlier boot
            break
        if started is not None and abs(boot - started) >= CLOCK_MOVED:  # a reboot before this start
            break
        first, later, started = seq, at, boot if starts else None
    return first


def first_from(connection: sqlite3.Connection, first: int) -> tuple[int, float]:
    """The number and the wall time of this row, or of the first one after it that is there; zeros if there is none."""
    after = "SELECT seq, wall FROM {0} WHERE seq = (SELECT min(seq) FROM {0} WHERE seq >= ?)"
    for table in ("evidence", "entries"):
        if columns := connection.execute(after.format(table), (first,)).fetchone():
            return int(columns[0]), float(columns[1])
    return 0, 0.0


def kept(connection: sqlite3.Connection) -> Kept:
    """From when on the database has rows, and steps."""
    oldest = "SELECT CASE seq WHEN 1 THEN 0.0 ELSE wall END FROM {} ORDER BY seq LIMIT 1"
    [steps] = connection.execute(oldest.format("entries")).fetchone()
    [since] = connection.execute(oldest.format("evidence")).fetchone() or [steps]
    return Kept(since, steps)
