"""Names that people read."""

from __future__ import annotations

CONTAINER = "container:"  # prefix for the id of a container that is in no pod


def is_pod(name: str) -> bool:
    """Whether this name of an owner is the UID of a pod."""
    return not name.startswith(CONTAINER)


def device_name(index: int, number: int | None) -> str:
    """The name of a device: its index, and for a slice its number on that GPU, as in ``0:1``."""
    return str(index) if number is None else f"{index}:{number}"
