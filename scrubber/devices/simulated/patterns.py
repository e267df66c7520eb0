"""The patterns that overwrite a memory: complete chunks at memcpy speed, no Python code for each byte.

A pattern returns the bytes of one chunk. ``random`` is a keyed stream of one chunk's length, rotated by another amount
in each chunk of 64 GiB. So data of an older clear, of another chunk or of another address does not match.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Callable

CHUNK = 2**18  # a chunk and its pattern fit into the cache of a core

Pattern = Callable[[int, int], memoryview]  # chunk number, length -> bytes

_ZEROS = memoryview(bytes(CHUNK))
_ONES = memoryview(b"\xff" * CHUNK)
_EVEN = memoryview(b"\x55" * CHUNK)
_ODD = memoryview(b"\xaa" * CHUNK)
_WORDS = array.array("Q", range(0, CHUNK, 8)).tobytes()  # each word is its offset in the chunk
_TURN = 0x5BD1  # odd: each chunk number below CHUNK has its own rotation, and those of neighbours differ widely


def zero(_number: int, length: int) -> memoryview:
    """Zeros."""
    return _ZEROS[:length]


def ones(_number: int, length: int) -> memoryview:
    """Every bit set."""
    return _ONES[:length]


def keyed(key: bytes) -> Pattern:
    """A stream that cannot be predicted without the key."""
    stream = memoryview(hashlib.shake_128(key).digest(CHUNK) * 2)

    def pattern(number: int, length: int) -> memoryview:
        start = number * _TURN % CHUNK
        return stream[start : start + length]

    return pattern


def even(_number: int, length: int) -> memoryview:
    """Each even bit set."""
    return _EVEN[:length]


def odd(_number: int, length: int) -> memoryview:
    """Each odd bit set."""
    return _ODD[:length]


def address(number: int, length: int) -> memoryview:
    """Each word holds its own address: a memory with crossed address lines returns the word of another address."""
    words = bytearray(_WORDS)
    for place, part in enumerate(number.to_bytes(4, "little"), start=4):
        words[place::8] = bytes((part,)) * (CHUNK // 8)
    return memoryview(words)[:length]


def by_name(name: str, key: bytes) -> Pattern:
    """The pattern with this name."""
    match name:
        case "zero":
            return zero
        case "ones":
            return ones
        case "random" if key:
            return keyed(key)
    raise ValueError(f"cannot write pattern {name!r}: the pattern is unknown, or its key is missing")
