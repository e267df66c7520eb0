"""Print a record as a page: of a trial (``.jsonl``), or of ``autoclave remnant`` (``.json``).

python -m benchmarks.show benchmarks/records/FILE. The record of the service is docs/measurements/service.md already.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import nvml
from benchmarks.trial import report
from benchmarks.trial.records import Records


def page(record: Path) -> str:
    """The page of this record."""
    return report.of(Records(record)) if record.suffix == ".jsonl" else _remnant(json.loads(record.read_text()))


def _remnant(result: dict[str, Any]) -> str:
    """Each cell as the record has it. ``why`` of an old record is in the words of its time."""
    about = {name: value for name, value in result.items() if name not in {"gpu", "rounds", "cells"}}
    title = f"# What the next container sees: {result['gpu']['model']}"
    return "\n\n".join((title, nvml.pairs(about | result["gpu"]), nvml.table(result["cells"]))) + "\n"


if __name__ == "__main__":
    print(page(Path(sys.argv[1])), end="")
