"""The ring of attempts, read by the service."""

from __future__ import annotations

from pathlib import Path

from scrubber.fence.kernel import program
from scrubber.fence.kernel.fence import Fence
from tests.fakes.bpf import Bpf

IN_THE_RING = program.RING_BYTES // (program.ATTEMPT.size + 8)


def test_no_attempt_is_lost_when_the_ring_begins_again(tmp_path: Path) -> None:
    """Its end is in the middle of an attempt, each time at another place."""
    kernel = Bpf(lambda: 1.0)
    with kernel.booted():
        fence = Fence(tmp_path)
        ring = kernel._map(fence.attempts.descriptor)
        for pid in range(5 * IN_THE_RING):
            kernel._send(ring, program.ATTEMPT.pack(1, 2, bytes([0, 0, 2, 0, *bytes(4)]), pid, 0, b"python", *[0] * 6))
            assert [it.pid for it in fence.attempts.new()] == [pid]
        fence.close()
