"""A real writer in a process of its own: says each acknowledged row on stdout, dies when it is told to or is killed.

writer.py LEDGER COUNT [compact] [patient]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ground.errors import LedgerUnavailable
from scrubber.core import events
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.ledger import opening

NOW = Moment(1_750_000_000.0, 1.0)


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - its output is what the test reads


def main(path: Path, count: int, *words: str) -> None:
    ledger, _ = opening.open_or_set_aside(path, NOW)
    say("open")
    for number in range(count):
        draft = LedgerEntry(0, "GPU-1", NOW, "op", events.Released(f"{number} " + "x" * 200))
        try:
            [entry] = ledger.append([draft])
        except LedgerUnavailable as error:
            say("refused", number, str(error))
            if "patient" not in words:
                return
            time.sleep(0.001)
            continue
        say("acknowledged", entry.seq, number)
        if "compact" in words and number % 7 == 0:
            ledger.compact(lambda records, _: records, 20, NOW)
    ledger.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
