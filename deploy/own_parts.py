"""Add to a bill of materials the version of Autoclave, which no package says: ``python deploy/own_parts.py SBOM``."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path


def main(bill: Path) -> None:
    """Add it."""
    content = json.loads(bill.read_text(encoding="utf-8"))
    content["metadata"]["component"]["version"] = metadata.version("autoclave")
    bill.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
