"""The Merkle tree over the rows of a ledger, with the hashes of RFC 6962. Pure.

A node is named by its level and its place on that level; a leaf has level 0. Only complete nodes are stored: those
above 2 to the power of ``level`` leaves. So a stored node never changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Lookup = Callable[[int, int], bytes]
"""The hash of a complete node: (level, place) -> hash."""

Node = tuple[int, int, bytes]
"""A node: level, place, hash."""


@dataclass(frozen=True, slots=True)
class Inclusion:
    """That an entry is in a tree of this size and root: the hashes that lead from its leaf to the root."""

    index: int
    size: int
    root: bytes
    hashes: tuple[bytes, ...]


def entry(row_hash: str, envelope: str) -> bytes:
    """The entry of a row. ``envelope``: the signed document that the row has; empty: it has none."""
    return f"{row_hash}\n{hashlib.sha256(envelope.encode()).hexdigest()}".encode() if envelope else row_hash.encode()


def leaf(entry: bytes) -> bytes:
    """The hash of an entry."""
    return hashlib.sha256(b"\x00" + entry).digest()


def parent(left: bytes, right: bytes) -> bytes:
    """The hash of the node above two nodes."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def completed(index: int, hash_of_leaf: bytes, stored: Lookup) -> Iterator[Node]:
    """The nodes that a new leaf completes, itself first. ``index``: how many leaves there were before."""
    level, place, node = 0, index, hash_of_leaf
    yield level, place, node
    while place % 2:
        node = parent(stored(level, place - 1), node)
        level, place = level + 1, place // 2
        yield level, place, node


def root(size: int, stored: Lookup) -> bytes:
    """The root of the tree of the first ``size`` leaves."""
    return _above(0, size, stored) if size else hashlib.sha256().digest()


def include(index: int, size: int, stored: Lookup) -> Inclusion:
    """That the leaf ``index`` is in the tree of the first ``size`` leaves."""
    first, end, hashes = 0, size, list[bytes]()
    while end - first > 1:
        middle = first + _largest_power(end - first)
        if index < middle:
            hashes.append(_above(middle, end, stored))
            end = middle
        else:
            hashes.append(_above(first, middle, stored))
            first = middle
    return Inclusion(index, size, root(size, stored), tuple(reversed(hashes)))


def root_above(index: int, size: int, hash_of_leaf: bytes, hashes: Sequence[bytes]) -> bytes | None:
    """The root to which these hashes lead from a leaf; None if they cannot be those of a tree of this size."""
    if not 0 <= index < size:
        return None
    node, last, left = hash_of_leaf, size - 1, list(hashes)
    while last:
        if index % 2 or index < last:
            if not left:
                return None
            other = left.pop(0)
            node = parent(other, node) if index % 2 else parent(node, other)
        index, last = index // 2, last // 2  # the last node of a level without a sibling is carried up as it is
    return None if left else node


def _above(first: int, end: int, stored: Lookup) -> bytes:
    """The hash above the leaves from ``first`` up to, not including, ``end``. ``first`` is a multiple of the size."""
    power = _largest_power(end - first) if end - first > 1 else 1
    if end - first == 1 or power * 2 == end - first:
        level = (end - first).bit_length() - 1
        return stored(level, first >> level)
    return parent(_above(first, first + power, stored), _above(first + power, end, stored))


def _largest_power(count: int) -> int:
    """The largest power of two that is smaller than ``count``, which is at least 2."""
    return 1 << ((count - 1).bit_length() - 1)
