"""What people call things."""

from __future__ import annotations

CONTAINER = "container:"  # and the beginning of its id: one that is in no pod


def is_pod(name: str) -> bool:
    """Whether an owner is called by the UID of a pod, which the kubelet knows."""
    return not name.startswith(CONTAINER)


def named(index: int, number: int | None) -> str:
    """How people call a device: the index, and for a slice its number on that GPU, as in 0:1."""
    return str(index) if number is None else f"{index}:{number}"
