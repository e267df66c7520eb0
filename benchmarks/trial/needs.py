"""The packages that the trial needs, and whether they are here. Uses nothing but Python itself."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

LIST = Path(__file__).with_name("packages.txt")
HOW = "carry the packages of benchmarks/trial/packages.txt to this machine, as benchmarks/trial/README.md says"


def pinned() -> dict[str, str]:
    """The packages of the list, with their releases."""
    lines = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return {name: release for name, _, release in (line.partition("==") for line in lines)}


def installed(name: str) -> str | None:
    """The release that is here; None: there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def missing() -> str | None:
    """One sentence about the packages that are not here; None if all are."""
    lacks = [name for name in pinned() if installed(name) is None]
    return f"these packages are not installed: {', '.join(lacks)}; {HOW}" if lacks else None
