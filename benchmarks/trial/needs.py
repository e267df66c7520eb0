"""What the trial needs besides the checkout, and whether it is here. Uses nothing but Python itself."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("packages.txt")
KERNELS = "scrubber/cuda/kernels"  # ignored by git
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
    """One sentence about what is not here; None if all is."""
    if not any((ROOT / KERNELS).glob("scrub.*.cubin")):
        carried = f"git ignores them: run make kernels where a network is, and carry the folder {KERNELS} as well"
        return f"the compiled kernels are not in this checkout; {carried}"
    lacks = [name for name in pinned() if installed(name) is None]
    return f"these packages are not installed: {', '.join(lacks)}; {HOW}" if lacks else None
