"""Allocate all free memory of a GPU, and run passes over it.

Not as one large block: the driver's own scrubber is known to fail on such blocks. Passes go up or down in the order of
the addresses, so that data is read long after it was written, when it has left the caches. Memory counts as compared
only if the device's own counter says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scrubber.core.measurements import Mismatch
from scrubber.cuda.card import Card, CudaError, Found, Progress, Span, Step, Sweep
from scrubber.cuda.patterns import Pattern

RUNGS = (2**33, 2**30, 2**28, 2**25, 2**21)  # bytes; the last one is the page size of the driver


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """All allocated memory."""

    card: Card
    spans: tuple[Span, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(span.size for span in self.spans)

    def write(self, pattern: Pattern, step: Step) -> None:
        """Write the pattern to all memory."""
        self.card.sweep(Sweep.WRITE, pattern, self.spans, step)

    def compare(self, pattern: Pattern, step: Step) -> tuple[Found, ...]:
        """Compare all memory with the pattern; the differences of each span."""
        return self._compared(Sweep.CHECK, pattern, self.spans, step)

    def check(self, pattern: Pattern, step: Step) -> Mismatch | None:
        """Compare all memory with the pattern; the differences as one finding."""
        return mismatch(self.compare(pattern, step), pattern)

    def invert(self, pattern: Pattern, step: Step, *, down: bool = False) -> Mismatch | None:
        """Write the flipped pattern to all memory; returns the differences from the pattern before."""
        kind, spans = (Sweep.INVERT_DOWN, self.spans[::-1]) if down else (Sweep.INVERT, self.spans)
        return mismatch(self._compared(kind, pattern, spans, step), pattern)

    def _compared(self, kind: Sweep, pattern: Pattern, spans: Sequence[Span], step: Step) -> tuple[Found, ...]:
        """Run the operation; CudaError unless the device compared each byte of each span."""
        found = self.card.sweep(kind, pattern, spans, step)
        for span, it in zip(spans, found, strict=True):
            if it.compared != span.size:
                counted = f"{it.compared} of the {span.size} bytes from {span.start} on were compared, as it counts"
                raise CudaError(f"cannot {kind.value} memory of {self.card.name}: {counted}")
        return found


def take(card: Card) -> GpuMemory:
    """Allocate all free memory, in smaller and smaller blocks."""
    spans: list[Span] = []
    start = 0
    for size in RUNGS:
        while (address := card.allocate(size)) is not None:
            spans.append(Span(address, size, start))
            start += size
    return GpuMemory(card, tuple(spans))


def mismatch(found: Iterable[Found], pattern: Pattern) -> Mismatch | None:
    """The differences of all spans as one finding."""
    wrong = [it for it in found if it.count]
    if not wrong:
        return None
    first = min(wrong, key=lambda it: it.offset)
    return Mismatch(first.offset, pattern.byte(first.offset), first.got, sum(it.count for it in wrong))


def counted(progress: Progress, total: int) -> Step:
    """A step function that adds up and reports the total progress."""
    done = 0

    def step(size: int) -> None:
        nonlocal done
        done += size
        progress(done, total)

    return step
