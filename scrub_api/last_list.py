"""The last list of devices, in a file of the run directory: for a plugin that starts while the service is away.

The service replaces the file with each list that a plugin would get. So what the file says ends as soon as the service
knows better.
"""

from __future__ import annotations

from pathlib import Path

from ground import boot, private_files
from scrub_api import scrub_pb2

LONGEST = 60.0  # seconds that a list is valid, whatever it says


def stamped(response: scrub_pb2.WatchResponse) -> bytes:
    """The content of the file, for a list that the service has made just now."""
    return scrub_pb2.LastList(boot_id=boot.boot_id(), uptime=boot.uptime(), list=response).SerializeToString()


def write(path: Path, content: bytes) -> None:
    """Replace the file, or remove it and raise OSError."""
    try:
        private_files.replace(path, content, durable=False)  # of no use after a boot
    except OSError:
        path.unlink(missing_ok=True)
        raise


def read(path: Path) -> scrub_pb2.WatchResponse | None:
    """The list, with the seconds for which it is still valid; None without a valid list.

    Raises OSError or DecodeError if the file is damaged, or is not this user's own.
    """
    try:
        last = scrub_pb2.LastList.FromString(private_files.content(path))
    except FileNotFoundError:
        return None
    age = boot.uptime() - last.uptime
    left = min(last.list.silence_seconds, LONGEST) - age
    if last.boot_id != boot.boot_id() or age < 0 or left <= 0:
        return None
    last.list.silence_seconds = left
    return last.list
