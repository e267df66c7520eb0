"""Add to a bill of materials what no package says: ``python deploy/own_parts.py SBOM TOOLS``.

That is the version of Autoclave, and the C library inside the create gate, which the compiler below TOOLS brought.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path

_VERSION_OF_MUSL = "lib/python*/site-packages/ziglang/lib/libc/musl/src/internal/version.h"


def main(bill: Path, tools: Path) -> None:
    """Add both. A compiler that does not say its version of the library ends the build."""
    content = json.loads(bill.read_text(encoding="utf-8"))
    content["metadata"]["component"]["version"] = metadata.version("autoclave")
    said = [path.read_text(encoding="utf-8") for path in tools.glob(_VERSION_OF_MUSL)]
    versions = re.findall(r'VERSION "([\d.]+)"', "".join(said))
    if len(versions) != 1:
        sys.exit(f"cannot say which musl is in the create gate: {tools}/{_VERSION_OF_MUSL} does not")
    purl, cpe = f"pkg:generic/musl@{versions[0]}", f"cpe:2.3:a:musl-libc:musl:{versions[0]}:*:*:*:*:*:*:*"
    musl = {"bom-ref": purl, "cpe": cpe, "name": "musl", "purl": purl, "type": "library", "version": versions[0]}
    content["components"].append({**musl, "description": "in libexec/autoclave-gate, which is linked with it"})
    bill.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
