"""The passes that clear, verify and scratch make over the memory of a card: patterns written, read back, and judged.

Look for old data, write each pattern, and read each but the last back: the step verify reads the last one back. So two
patterns take four passes.

The kernels of ``scratch`` overwrite ``OVERWRITTEN`` of each multiprocessor (docs/kernels.md). Each receipt names the
rest, by compute capability. A capability that is not in the table may have kinds of memory that this release does not
know.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from scrubber.core.measured import Cleared, Mismatch, Scratched, Verified, joined
from scrubber.cuda import patterns
from scrubber.cuda.card import Card, CardBusyError, Found, KernelProgram, Progress, Span
from scrubber.cuda.memory import GpuMemory, counted, mismatch

PLACES = 8  # the most offsets of old data that are reported
OVERWRITTEN = ("shared memory", "registers")
_LEFT = ("caches", "some registers")  # of every GPU
TENSOR = "tensor memory"  # 256 KiB of each multiprocessor: 128 lanes of 512 columns of 4 bytes
UNKNOWN = "not known what else"
SHARED = "what other virtual machines use"

# What a multiprocessor has besides OVERWRITTEN and _LEFT.
BESIDE = MappingProxyType(
    {
        (7, 5): (),
        (8, 0): (),
        (8, 6): (),
        (8, 9): (),
        (9, 0): (),
        (10, 0): (TENSOR,),
        (10, 3): (TENSOR,),
        (12, 0): (),
    }
)
_WITH_TENSOR_MEMORY = 10  # every capability of this major version


def clear(memory: GpuMemory, key: bytes, names: Sequence[str], progress: Progress, census: int = 1) -> Cleared:
    """Look for old data, then write each pattern in order and read back each but the last.

    ``census``: one stretch in so many is searched for old data. Covered are the bytes that were written, and that the
    device counted in each comparison; none without a pattern.
    """
    chosen = [patterns.by_name(name, key) for name in names]
    step = counted(progress, memory.expected * max(0, 2 * len(chosen) - 1))
    first = patterns.keyed(key, "census").first if key else 0
    residue: list[Found] = []

    def look(span: Span) -> None:
        residue.extend(memory.sample(patterns.ZERO, census, first, span))

    wrong: Mismatch | None = None
    covered = 0
    for number, pattern in enumerate(chosen):
        memory.write(pattern, step, look if number == 0 else lambda _span: None)
        covered = memory.size
        if number < len(chosen) - 1:
            compared = memory.compare(pattern, step)
            wrong, covered = joined(wrong, mismatch(compared, pattern)), _covered(compared)
    old = [part for part in residue if part.count]
    return Cleared(
        covered,
        residue_bytes=sum(part.count for part in old),
        mismatch=wrong,
        residue_at=tuple(part.offset for part in old[:PLACES]),
        searched_bytes=_covered(residue),
    )


def verify(memory: GpuMemory, progress: Progress) -> Verified:
    """Read all memory: each byte must be as it was last written, which only the worker that wrote it knows."""
    if (pattern := memory.holds) is None:
        raise CardBusyError(f"cannot read back the memory of {memory.card.name}: this worker has not written all of it")
    compared = memory.compare(pattern, counted(progress, memory.size))
    return Verified(_covered(compared), (pattern.name,), mismatch=mismatch(compared, pattern))


def scratch(card: Card, key: bytes) -> Scratched:
    """Overwrite the on-chip memory of each multiprocessor, shared memory and registers; read it back, leave zeros."""
    number = patterns.keyed(key, "scratch").first
    runs = [card.everywhere(program, number) for program in (KernelProgram.SCRATCH, KernelProgram.REGISTERS)]
    reached = set.intersection(*({unit.number for unit in run} for run in runs))
    faulty = {unit.number for run in runs for unit in run if unit.wrong}
    return Scratched(card.units, len(reached), len(faulty), card.units * card.ungranted)


def _covered(parts: Sequence[Found]) -> int:
    return sum(part.compared for part in parts)


def not_overwritten(capability: tuple[int, int], *, virtual: bool | None = False) -> tuple[str, ...]:
    """The memory that a scrub leaves as it is.

    ``virtual``: a vGPU, whose multiprocessors others use as well; None: it is not known whether it is one.
    """
    unknown = (*((TENSOR,) if capability[0] == _WITH_TENSOR_MEMORY else ()), UNKNOWN)
    of_others = (UNKNOWN,) if virtual is None else (SHARED,) if virtual else ()
    return tuple(dict.fromkeys((*_LEFT, *BESIDE.get(capability, unknown), *of_others)))
