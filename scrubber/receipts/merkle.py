"""The arithmetic of RFC 6962: hashes of leaves and parents, a tree's frontier, inclusion of an entry. Pure.

A node is named by its level and its place on that level; a leaf has level 0. Only complete nodes are stored: those
above 2 to the power of ``level`` leaves. So a stored node never changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

Lookup = Callable[[int, int], bytes]
"""The hash of a complete node: (level, place) -> hash."""

Node = tuple[int, int, bytes]
"""A node: level, place, hash."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """All of a tree that its root and its next leaves need: the complete nodes without a parent, the largest first."""

    size: int = 0
    peaks: tuple[bytes, ...] = ()

    @property
    def root(self) -> bytes:
        """The root of the tree."""
        return _joined(self.peaks) if self.peaks else hashlib.sha256().digest()

    def grown(self, hash_of_leaf: bytes) -> tuple[Frontier, list[Node]]:
        """The tree with one more leaf, and the nodes that this leaf completes, itself first."""
        level, place, node, peaks = 0, self.size, hash_of_leaf, list(self.peaks)
        completed = [(level, place, node)]
        while place % 2:
            level, place, node = level + 1, place // 2, parent(peaks.pop(), node)
            completed.append((level, place, node))
        return Frontier(self.size + 1, (*peaks, node)), completed


@dataclass(frozen=True, slots=True)
class Head:
    """How many rows there are, and the root of their tree. A copy elsewhere shows if the last rows were cut off."""

    size: int
    root: str

    @classmethod
    def of(cls, frontier: Frontier) -> Head:
        """The head of this tree."""
        return cls(frontier.size, frontier.root.hex())


@dataclass(frozen=True, slots=True)
class Inclusion:
    """That an entry is in a tree of this size and root: the hashes that lead from its leaf to the root."""

    index: int
    size: int
    root: bytes
    hashes: tuple[bytes, ...]


def leaf(entry: bytes) -> bytes:
    """The hash of an entry."""
    return hashlib.sha256(b"\x00" + entry).digest()


def leaf_of_row(row_hash: str, envelope: str) -> bytes:
    """The leaf of a row. ``envelope``: the signed document that the row has; empty: it has none."""
    return leaf_beside(row_hash, hashlib.sha256(envelope.encode()).hexdigest() if envelope else "")


def leaf_beside(row_hash: str, envelope_hash: str) -> bytes:
    """The same. ``envelope_hash``: that of the signed document; empty: it has none."""
    return leaf((f"{row_hash}\n{envelope_hash}" if envelope_hash else row_hash).encode())


def parent(left: bytes, right: bytes) -> bytes:
    """The hash of the node above two nodes."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def frontier(size: int, stored: Lookup) -> Frontier:
    """The tree of the first ``size`` leaves."""
    return Frontier(size, tuple(_peaks(0, size, stored)))


def include(index: int, size: int, stored: Lookup) -> Inclusion:
    """That the leaf ``index`` is in the tree of the first ``size`` leaves."""
    first, end, hashes = 0, size, list[bytes]()
    while end - first > 1:
        middle = first + (1 << ((end - first - 1).bit_length() - 1))  # the largest power of two below the number
        other = (middle, end) if index < middle else (first, middle)
        hashes.append(_joined(tuple(_peaks(*other, stored))))
        first, end = (first, middle) if index < middle else (middle, end)
    return Inclusion(index, size, frontier(size, stored).root, tuple(reversed(hashes)))


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


def _peaks(first: int, end: int, stored: Lookup) -> Iterator[bytes]:
    """The largest complete nodes above the leaves from ``first`` up to, not including, ``end``.

    ``first`` is a multiple of the number of leaves below each of them.
    """
    while first < end:
        level = (end - first).bit_length() - 1
        yield stored(level, first >> level)
        first += 1 << level


def _joined(peaks: Sequence[bytes]) -> bytes:
    """The node above them, of which only the left side is complete."""
    return reduce(lambda right, left: parent(left, right), reversed(peaks))
