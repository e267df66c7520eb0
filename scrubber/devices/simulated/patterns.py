"""What is written over a memory: whole chunks at memcpy speed, no Python per byte.

A pattern is asked for the bytes of one chunk. ``random`` is a keyed stream of one chunk's length, turned by another
amount in every chunk: memory that answers with an older clear, another chunk or another address differs from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

CHUNK = 2**20

Pattern = Callable[[int, int], memoryview]  # chunk number, length -> bytes

_ZEROS = memoryview(bytes(CHUNK))
_TURN = 0x5BD1  # odd: every chunk number below CHUNK gets a turn of its own, and neighbours lie far apart


def zero(_number: int, length: int) -> memoryview:
    """Nothing but zeros, everywhere."""
    return _ZEROS[:length]


def keyed(key: bytes) -> Pattern:
    """A stream that nobody can foresee who does not know the key."""
    stream = memoryview(hashlib.shake_128(key).digest(CHUNK) * 2)

    def pattern(number: int, length: int) -> memoryview:
        start = number * _TURN % CHUNK
        return stream[start : start + length]

    return pattern


def named(name: str, key: bytes) -> Pattern:
    """The pattern that an order names."""
    match name:
        case "zero":
            return zero
        case "random" if key:
            return keyed(key)
    raise ValueError(f"cannot write pattern {name!r}: it is not known here, or its key is missing")
