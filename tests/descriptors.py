"""The open descriptors of this process, for tests that nothing is left open."""

from contextlib import suppress
from pathlib import Path


def opened() -> set[tuple[str, str]]:
    """Each descriptor with its file, but for the one that lists them.

    Compare with ``<=``, not by number: garbage of an earlier test may close some of its own meanwhile.
    """
    found = set()
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):
            found.add((link.name, str(link.readlink())))
    return found
