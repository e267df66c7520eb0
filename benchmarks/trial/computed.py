"""What the passes of a scrub should take, computed from the bandwidth of the memory, beside what they took.

The page ``docs/measurements/gpus.md`` says where the two shares are from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.trial.figures import Measured, Question

FAST_SCRUB = ("write keyed", "check keyed", "write zero", "check zero")
# Shares of the peak: a kernel with three reads and a write on GH200 and on H100 PCIe (gpu-benches, ``triad``).
BEST, LEAST = 3783 / 4023, 1832 / 2039


def peak(clock_mhz: float, width_bits: float) -> float:
    """The most that a memory can move, in GB/s: two transfers in each cycle of its clock."""
    return clock_mhz * 1e6 * 2 * width_bits / 8 / 1e9


def floor(size: int, gbps: float) -> float:
    """The milliseconds of a pass at the peak. No pass is faster."""
    return size / gbps / 1e6


def expected(size: int, gbps: float) -> tuple[float, float]:
    """The milliseconds of a pass at the two shares of the peak."""
    return floor(size, gbps) / BEST, floor(size, gbps) / LEAST


def computed(size: int, gbps: float, seconds: Mapping[str, Sequence[float]]) -> list[Measured]:
    """The passes of a fast scrub and their sum, as measured, beside what is computed of them."""
    rows = [(name, 1, seconds[name]) for name in FAST_SCRUB]
    rounds = zip(*(seconds[name] for name in FAST_SCRUB), strict=True)
    rows.append(("the four passes of a fast scrub", len(FAST_SCRUB), tuple(map(sum, rounds))))
    least, (low, high), found = floor(size, gbps), expected(size, gbps), []
    for name, passes, samples in rows:
        because = f"{passes * least:.1f} ms at the peak, and the shares that were reported of like GPUs"
        question = Question(f"{name}: time", passes * low, passes * high, "ms", because)
        found.append(question.answered(*(1000 * each for each in samples)))
    return found
