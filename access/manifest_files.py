"""The manifests as files that a person can read, and the values that fill them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from string import Template

HERE = Path(__file__).parent / "manifests"
PROBE = HERE.parent / "probe.py"


def filled(name: str, values: Mapping[str, str]) -> str:
    """The manifest of this name with its values."""
    return Template((HERE / f"{name}.yaml").read_text()).substitute(values)


def digests() -> dict[str, str]:
    """The SHA-256 of the probe and of each manifest as it is shipped, by name."""
    files = {"probe.py": PROBE, **{path.stem: path for path in sorted(HERE.glob("*.yaml"))}}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
