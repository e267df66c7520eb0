"""All of a GPU's memory that one process can have, and passes over it.

Never one giant block: the driver's own scrubber has been seen to give up on those. Passes go in the order of the
addresses, or the other way round, so that what is read was written long enough ago to have left the caches. What the
device has not compared by its own count holds nothing that we know of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scrubber.core.measurements import Mismatch
from scrubber.cuda.card import Card, CudaError, Deed, Found, Progress, Span, Step
from scrubber.cuda.patterns import Pattern

RUNGS = (2**33, 2**30, 2**28, 2**25, 2**21)  # bytes; the last one is the page of the driver


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """What was allocated, as one."""

    card: Card
    spans: tuple[Span, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(span.size for span in self.spans)

    def write(self, pattern: Pattern, step: Step) -> None:
        """Everywhere."""
        self.card.sweep(Deed.WRITE, pattern, self.spans, step)

    def compare(self, pattern: Pattern, step: Step) -> tuple[Found, ...]:
        """What differs from it, span by span."""
        return self._compared(Deed.CHECK, pattern, self.spans, step)

    def check(self, pattern: Pattern, step: Step) -> Mismatch | None:
        """What differs from it, as one finding."""
        return mismatch(self.compare(pattern, step), pattern)

    def invert(self, pattern: Pattern, step: Step, *, down: bool = False) -> Mismatch | None:
        """The flipped pattern everywhere; what differed from the pattern before."""
        deed, spans = (Deed.INVERT_DOWN, self.spans[::-1]) if down else (Deed.INVERT, self.spans)
        return mismatch(self._compared(deed, pattern, spans, step), pattern)

    def _compared(self, deed: Deed, pattern: Pattern, spans: Sequence[Span], step: Step) -> tuple[Found, ...]:
        """Done, and every byte of every span was looked at."""
        found = self.card.sweep(deed, pattern, spans, step)
        for span, it in zip(spans, found, strict=True):
            if it.compared != span.size:
                counted = f"{it.compared} of the {span.size} bytes from {span.start} on were compared, as it counts"
                raise CudaError(f"cannot {deed.value} memory of {self.card.name}: {counted}")
        return found


def take(card: Card) -> GpuMemory:
    """All that can be had, in ever smaller pieces."""
    spans: list[Span] = []
    start = 0
    for size in RUNGS:
        while (address := card.allocate(size)) is not None:
            spans.append(Span(address, size, start))
            start += size
    return GpuMemory(card, tuple(spans))


def mismatch(found: Iterable[Found], pattern: Pattern) -> Mismatch | None:
    """What was found in all spans as one finding."""
    wrong = [it for it in found if it.count]
    if not wrong:
        return None
    first = min(wrong, key=lambda it: it.offset)
    return Mismatch(first.offset, pattern.byte(first.offset), first.got, sum(it.count for it in wrong))


def counted(progress: Progress, total: int) -> Step:
    """Tell how far it is in all."""
    done = 0

    def step(size: int) -> None:
        nonlocal done
        done += size
        progress(done, total)

    return step
