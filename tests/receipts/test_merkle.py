"""The tree against the definition of RFC 6962, written as the RFC writes it."""

from __future__ import annotations

import hashlib

import pytest

from scrubber.receipts import merkle

ENTRIES = [f"entry {number}".encode() for number in range(300)]


def defined(entries: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1."""
    if len(entries) < 2:
        return hashlib.sha256(b"\x00" + entries[0]).digest() if entries else hashlib.sha256(b"").digest()
    power = 1
    while power * 2 < len(entries):
        power *= 2
    return hashlib.sha256(b"\x01" + defined(entries[:power]) + defined(entries[power:])).digest()


def path(index: int, entries: list[bytes]) -> list[bytes]:
    """PATH of RFC 6962, section 2.1.1."""
    if len(entries) < 2:
        return []
    power = 1
    while power * 2 < len(entries):
        power *= 2
    if index < power:
        return [*path(index, entries[:power]), defined(entries[power:])]
    return [*path(index - power, entries[power:]), defined(entries[:power])]


def grown(count: int) -> dict[tuple[int, int], bytes]:
    """All complete nodes of the tree of the first entries."""
    nodes: dict[tuple[int, int], bytes] = {}
    frontier = merkle.Frontier()
    for entry in ENTRIES[:count]:
        frontier, completed = frontier.grown(merkle.leaf(entry))
        for level, place, node in completed:
            assert (level, place) not in nodes
            nodes[level, place] = node
    return nodes


NODES = grown(len(ENTRIES))


def lookup(level: int, place: int) -> bytes:
    return NODES[level, place]


def test_every_root_is_that_of_the_rfc():
    grown = merkle.Frontier()
    for size in range(len(ENTRIES) + 1):
        assert grown.root == defined(ENTRIES[:size])
        assert grown == merkle.frontier(size, lookup), "a frontier that was read is the one that has grown"
        grown, _ = grown.grown(merkle.leaf(ENTRIES[size % len(ENTRIES)]))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 64, 65, 127, 300])
def test_every_proof_is_that_of_the_rfc(size):
    for index in range(size):
        proof = merkle.include(index, size, lookup)
        assert list(proof.hashes) == path(index, ENTRIES[:size])
        assert merkle.root_above(index, size, merkle.leaf(ENTRIES[index]), proof.hashes) == proof.root


def test_a_proof_for_another_entry_place_or_size_leads_elsewhere():
    proof = merkle.include(5, 9, lookup)
    right = merkle.leaf(ENTRIES[5])
    forged = [
        merkle.root_above(5, 9, merkle.leaf(ENTRIES[4]), proof.hashes),
        merkle.root_above(4, 9, right, proof.hashes),
        merkle.root_above(5, 16, right, proof.hashes[:-1]),
        merkle.root_above(5, 9, right, proof.hashes[:-1]),
        merkle.root_above(5, 9, right, (*proof.hashes, right)),
        merkle.root_above(9, 9, right, proof.hashes),
    ]
    assert proof.root not in forged
