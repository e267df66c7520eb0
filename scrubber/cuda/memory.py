"""All free memory of a GPU, taken in blocks as spans, and one pass over them: write, compare, count.

Not as one large block: the driver's own scrubber is known to fail on such blocks. Passes go up or down in the order of
the addresses, so that data is read long after it was written, when it has left the caches. Memory counts as compared
only if the device's own counter says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from scrubber.core.measured import Mismatch
from scrubber.cuda.card import Card, CudaError, Found, Progress, Span, Step, Sweep
from scrubber.cuda.patterns import Pattern

RUNGS = (2**33, 2**30, 2**28, 2**25, 2**21)  # bytes; the last one is the page size of the driver
STRETCH = 2**25  # bytes: the unit of a sample, large enough that few launches read it


class GpuMemory:
    """All memory that can be allocated, allocated by the first operation on it."""

    def __init__(self, card: Card, spans: Iterable[Span] = (), rest: Iterable[Span] = ()) -> None:
        """``rest`` allocates a span each time it is asked for one."""
        self.card = card
        self._spans = list(spans)
        self._rest = iter(rest)
        self.holds: Pattern | None = None  # what was last written to all of it; None: nothing, or not to the end

    @property
    def spans(self) -> tuple[Span, ...]:
        """All allocations."""
        return tuple(self._each())

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(span.size for span in self._each())

    @property
    def expected(self) -> int:
        """The bytes that it has, or will have by what the driver says."""
        taken = sum(span.size for span in self._spans)
        return taken + self.card.memory().free // RUNGS[-1] * RUNGS[-1]

    def write(self, pattern: Pattern, step: Step, before: Callable[[Span], None] = lambda _span: None) -> None:
        """Write the pattern to all memory. ``before`` is called for each allocation, before it is overwritten.

        While the device writes to one allocation, the next one is made.
        """
        self.holds = None
        self.card.sweep(Sweep.WRITE, pattern, self._each(before), step)
        self.holds = pattern

    def sample(self, pattern: Pattern, one_in: int, first: int, span: Span) -> tuple[Found, ...]:
        """Compare one stretch of so many in an allocation; ``first`` says which. The differences of each stretch.

        A small allocation is compared whole: all of them together are a small part of the memory.
        """
        if span.size < STRETCH * one_in or one_in == 1:
            return self._compared(Sweep.CHECK, pattern, (span,), lambda _size: None)
        starts = range(span.start // STRETCH * STRETCH, span.start + span.size, STRETCH)
        chosen = [start for start in starts if start // STRETCH % one_in == first % one_in]
        edges = [(max(start, span.start), min(start + STRETCH, span.start + span.size)) for start in chosen]
        parts = [Span(span.address + low - span.start, high - low, low) for low, high in edges]
        return self._compared(Sweep.CHECK, pattern, parts, lambda _size: None)

    def compare(self, pattern: Pattern, step: Step) -> tuple[Found, ...]:
        """Compare all memory with the pattern; the differences of each span."""
        return self._compared(Sweep.CHECK, pattern, self.spans, step)

    def check(self, pattern: Pattern, step: Step) -> Mismatch | None:
        """Compare all memory with the pattern; the differences as one finding."""
        return mismatch(self.compare(pattern, step), pattern)

    def invert(self, pattern: Pattern, step: Step, *, down: bool = False) -> Mismatch | None:
        """Write the flipped pattern to all memory; returns the differences from the pattern before."""
        self.holds = None
        kind, spans = (Sweep.INVERT_DOWN, self.spans[::-1]) if down else (Sweep.INVERT, self.spans)
        return mismatch(self._compared(kind, pattern, spans, step), pattern)

    def _each(self, before: Callable[[Span], None] = lambda _span: None) -> Iterator[Span]:
        for span in self._spans:
            before(span)
            yield span
        for span in self._rest:
            self._spans.append(span)
            before(span)
            yield span

    def _compared(self, kind: Sweep, pattern: Pattern, spans: Sequence[Span], step: Step) -> tuple[Found, ...]:
        """Run the operation; CudaError unless the device compared each byte of each span."""
        results = self.card.sweep(kind, pattern, spans, step)
        for span, result in zip(spans, results, strict=True):
            if result.compared != span.size:
                counted = f"{result.compared} of the {span.size} bytes from {span.start} on were compared"
                raise CudaError(f"cannot {kind.value} memory of {self.card.name}: the device reports that {counted}")
        return results


def all_free(card: Card) -> GpuMemory:
    """All free memory, of which nothing is allocated yet."""
    return GpuMemory(card, rest=_allocated(card))


def take(card: Card) -> GpuMemory:
    """All free memory, allocated."""
    whole = all_free(card)
    return GpuMemory(card, whole.spans)


def _allocated(card: Card) -> Iterator[Span]:
    """Allocate all free memory, in smaller and smaller blocks.

    Each refused allocation is a line in the kernel's log, so a block larger than the free memory is not asked for. Only
    a refusal of the smallest block ends it.
    """
    start = 0
    for size in RUNGS:
        while size == RUNGS[-1] or size <= card.memory().free:
            address = card.allocate(size)
            if address is None:
                break
            yield Span(address, size, start)
            start += size


def mismatch(results: Iterable[Found], pattern: Pattern) -> Mismatch | None:
    """The differences of all spans as one finding."""
    wrong = [result for result in results if result.count]
    if not wrong:
        return None
    first = min(wrong, key=lambda result: result.offset)
    return Mismatch(first.offset, pattern.byte(first.offset), first.got, sum(result.count for result in wrong))


def counted(progress: Progress, total: int) -> Step:
    """A step function that adds up and reports the total progress."""
    done = 0

    def step(size: int) -> None:
        nonlocal done
        done += size
        progress(min(done, total), total)

    return step
