"""Simulated containers: an environment variable names the container of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MARK = "AUTOCLAVE_SIMULATED_CONTAINER"
_PREFIX = f"{MARK}=".encode()


def of(pid: int) -> str | None:
    """The container of a process; None if it has none, has ended, or we may not read it.

    A zombie (state Z) has no environment any more, and so no container.
    """
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    for entry in environment.split(b"\0"):
        if entry.startswith(_PREFIX):
            return entry.removeprefix(_PREFIX).decode(errors="replace")
    return None


def members() -> Iterator[tuple[int, str]]:
    """All processes in simulated containers, each with its container."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (container := of(int(entry.name))) is not None:
            yield int(entry.name), container


def living() -> dict[str, int]:
    """The containers that have a live process, each with one of its processes."""
    return {name: pid for pid, name in members()}
