"""The directory with the files of a run."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from ground import private_files
from ground.errors import FatalError


def make(to: Path | None, program: str, began: datetime) -> Path:
    """A new directory: ``to``, or PROGRAM-DATE-TIME here. The second run of a second gets one that ends with -2."""
    name = f"{program}-{began:%Y%m%d-%H%M%S}"
    place, number = to or Path(name), 1
    while True:
        try:
            place.mkdir(private_files.READABLE_DIRECTORY)
        except OSError as error:
            if to is not None or not isinstance(error, FileExistsError):
                raise FatalError(f"cannot write to {place}: {error.strerror}") from error
            number += 1
            place = Path(f"{name}-{number}")
        else:
            return place
