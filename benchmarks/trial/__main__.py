"""python -m benchmarks.trial: says in one sentence what is missing here, before anything else is loaded."""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks.trial import needs


def main() -> int:
    """Run the trial; 2 if a package is missing."""
    if (lacks := needs.missing()) is not None:
        sys.stderr.write(f"cannot begin: {lacks}\n")
        return 2
    return int(import_module("benchmarks.trial.command").main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
