"""Run in a mount namespace of its own: a small disk that fills up, or one that turns read-only.

hostile.py full|read-only MOUNTPOINT; prints one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from scrubber.core import events
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.ground.errors import LedgerUnavailable
from scrubber.ledger import audit, opening, sqlite

NOW = Moment(1_750_000_000.0, 1.0)


def append(ledger: sqlite.SqliteStore, why: str) -> str | None:
    """What the refusal said, if it was one."""
    try:
        ledger.append([LedgerEntry(0, "GPU-1", NOW, "op", events.Released(why))])
    except LedgerUnavailable as error:
        return error.message
    return None


def whys(ledger: sqlite.SqliteStore) -> list[str]:
    return [it.event.why.strip() for it in ledger.load().entries if isinstance(it.event, events.Released)]


def full(disk: Path) -> dict[str, object]:
    ledger, _ = opening.open_or_set_aside(disk / "ledger.sqlite", NOW)
    (disk / "ballast").write_bytes(b"x" * 400_000)
    acknowledged, refusals = [], []
    for number in range(3000):
        refusal = append(ledger, f"{number}" + " " * 2000)
        acknowledged += [] if refusal else [str(number)]
        refusals += [refusal] if refusal else []
        if len(refusals) == 3:
            break
    (disk / "ballast").unlink()
    again = append(ledger, "again")
    truthful = whys(ledger) == [*acknowledged, "again"]
    sound = audit.verify(disk / "ledger.sqlite").broken is None
    return {"refusals": refusals, "again": again, "truthful": truthful, "sound": sound}


def read_only(disk: Path) -> dict[str, object]:
    path = disk / "ledger.sqlite"
    ledger, _ = opening.open_or_set_aside(path, NOW)
    append(ledger, "a")
    ledger.close()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    refusals = []
    for _ in range(2):
        try:
            opening.open_or_set_aside(path, NOW)
        except LedgerUnavailable as error:
            refusals.append(error.message)
    rows = audit.verify(path).rows
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    again, aside = opening.open_or_set_aside(path, NOW)
    return {"refusals": refusals, "rows": rows, "entries": whys(again), "aside": aside is not None}


if __name__ == "__main__":
    result = {"full": full, "read-only": read_only}[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps(result))  # noqa: T201 - its output is what the test reads
