"""What is written over a memory: whole chunks at memcpy speed, no Python per byte.

A pattern is asked for the bytes of one chunk. ``random`` is a keyed stream of one chunk's length, turned by another
amount in every chunk of 64 GiB: memory that answers with an older clear, another chunk or another address differs from
it.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Callable

CHUNK = 2**18  # what is read and compared with it fits into the cache of a core

Pattern = Callable[[int, int], memoryview]  # chunk number, length -> bytes

_ZEROS = memoryview(bytes(CHUNK))
_EVEN = memoryview(b"\x55" * CHUNK)
_ODD = memoryview(b"\xaa" * CHUNK)
_WORDS = array.array("Q", range(0, CHUNK, 8)).tobytes()  # each the offset of itself in its chunk
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


def even(_number: int, length: int) -> memoryview:
    """Every other bit, the same everywhere."""
    return _EVEN[:length]


def odd(_number: int, length: int) -> memoryview:
    """The other bits."""
    return _ODD[:length]


def address(number: int, length: int) -> memoryview:
    """Every word says where it lies: memory whose addresses are crossed shows what lies elsewhere."""
    words = bytearray(_WORDS)
    for place, part in enumerate(number.to_bytes(4, "little"), start=4):
        words[place::8] = bytes((part,)) * (CHUNK // 8)
    return memoryview(words)[:length]


def named(name: str, key: bytes) -> Pattern:
    """The pattern that an order names."""
    match name:
        case "zero":
            return zero
        case "random" if key:
            return keyed(key)
    raise ValueError(f"cannot write pattern {name!r}: it is not known here, or its key is missing")
