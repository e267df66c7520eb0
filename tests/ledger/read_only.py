"""Run in a mount namespace of its own: a disk that turns read-only and writable again. ``read_only.py MOUNTPOINT``.

Prints one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ground.errors import LedgerUnavailable
from scrubber.core.model import Moment
from scrubber.ledger import opening, reading
from tests.ledger.conftest import NOW, drafted, unfolded


def main(disk: Path) -> None:
    path = disk / "ledger.sqlite"
    ledger = opening.open_or_set_aside(path, NOW)[0]
    ledger.append([drafted("a")])
    ledger.close()
    subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
    refusals = []
    for _attempt in range(2):
        try:
            opening.open_or_set_aside(path, NOW)
        except LedgerUnavailable as error:
            refusals.append(str(error))
    rows = reading.verify(path).rows
    subprocess.run(["mount", "-o", "remount,bind,rw", disk], check=True)
    again, aside = opening.open_or_set_aside(path, Moment(NOW.wall, 1.0))
    entries = [getattr(entry.event, "why", "") for entry in unfolded(again).entries]
    print(json.dumps({"refusals": refusals, "rows": rows, "entries": entries, "aside": aside is not None}))  # noqa: T201 - its output is what the test reads


if __name__ == "__main__":
    main(Path(sys.argv[1]))
