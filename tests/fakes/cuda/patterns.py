"""What the kernels write, computed with numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

CONSTANT, ADDRESS, KEYED = 0, 1, 2


def pattern_bytes(kind: int, first: int, second: int, base: int, vectors: int) -> Words:
    """The two words of each vector, from number ``base`` on; numbers go round at 2^64."""
    numbers = np.arange(vectors, dtype=np.uint64) + np.uint64(base)
    words = np.empty((vectors, 2), np.uint64)
    match kind:
        case 0:
            words[:, 0], words[:, 1] = np.uint64(first), np.uint64(second)
        case 1:
            words[:, 0], words[:, 1] = numbers ^ np.uint64(first), ~numbers ^ np.uint64(second)
        case 2:
            mixed = np.uint64(first) + (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
            other = (mixed ^ np.uint64(second)) * np.uint64(0xD6E8FEB86659FD93)
            words[:, 0], words[:, 1] = mixed, other ^ (other >> np.uint64(32))
        case _:
            raise ValueError(f"there is no pattern of kind {kind}")
    return words
