"""Simulated containers: a process belongs to the one that its environment names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MARK = "AUTOCLAVE_SIMULATED_CONTAINER"
_PREFIX = f"{MARK}=".encode()


def of(pid: int) -> str | None:
    """The container of a process; None when it has none, is gone, or is not ours to look into.

    A process that has ended but was not yet collected (state Z) has no environment left, and so no container.
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
    """Every process that belongs to a simulated container, with its container."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (container := of(int(entry.name))) is not None:
            yield int(entry.name), container


def living() -> dict[str, int]:
    """Those of which any process still runs, each with one of them."""
    return {name: pid for pid, name in members()}
