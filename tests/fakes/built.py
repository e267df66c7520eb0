"""What tests compile is compiled once for each state of its sources, whichever process asks first."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "stand-ins"  # `make clean` removes it


def built(name: str, sources: Iterable[Path], make: Callable[[Path], object]) -> Path:
    """The folder that ``make`` has filled from these sources."""
    digest = hashlib.sha256()
    for path in sorted(sources):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = FOLDER / f"{name}-{digest.hexdigest()[:16]}"
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=FOLDER) as fresh:
                make(Path(fresh) / "it")
                shutil.move(Path(fresh) / "it", folder)
    return folder
