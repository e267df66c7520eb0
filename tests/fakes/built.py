"""What tests compile is compiled once for each state of its sources, whichever process asks first."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

BUILT = Path(__file__).parents[2] / "build" / "stand-ins"  # `make clean` removes it


def folder_for(sources: Iterable[Path], *options: object) -> Path:
    """Where the results belong that are made of these sources and options."""
    digest = hashlib.sha256(repr(options).encode())
    for path in sorted(sources):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return BUILT / digest.hexdigest()[:16]


def made(path: Path, make: Callable[[Path], object]) -> Path:
    """A file that one process makes while the others that need it wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_suffix(".new")
            make(unfinished)
            unfinished.replace(path)
    return path
