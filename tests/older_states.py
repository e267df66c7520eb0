"""The states of older versions in ``tests/ledger/states``."""

from __future__ import annotations

import tarfile
from pathlib import Path


def number(path: Path) -> int:
    """The format of the ledger."""
    return int(path.name.partition("-")[0])


# GPU 1 is quarantined, and GPU 2 acquired for "job 7".
ALL = sorted((Path(__file__).parent / "ledger/states").glob("*.tar.xz"), key=number)


def name(path: Path) -> str:
    """The format and the commit."""
    return path.name.removesuffix(".tar.xz")


def unpack(path: Path, directory: Path) -> None:
    """Put a state into a directory, private as a service leaves it."""
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)
    with tarfile.open(path) as archive:
        for file in (it for it in archive if it.isfile()):  # Debian's Python 3.11.2 knows no filter yet
            content = archive.extractfile(file)
            assert content is not None
            place = directory / file.name
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.write_bytes(content.read())
            place.chmod(file.mode)
