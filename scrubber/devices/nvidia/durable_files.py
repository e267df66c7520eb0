"""Files that a power loss never leaves half written, readable by root only."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scrubber.ground import private_files


@contextmanager
def beside(path: Path, text: bytes) -> Iterator[Path]:
    """Write the text to a temporary file next to ``path`` and sync it; the caller moves or links it. Raises OSError."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    private_files.make_folder(path.parent)
    aside.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield aside
    finally:
        aside.unlink(missing_ok=True)
