"""What tests do to a real GPU: each kind in a process of its own, for CUDA is given back by a process's end alone.

``python -m tests.gpu.inside NAME``: where it is comes in on stdin, what was seen goes out on stdout, as JSON.
"""

from __future__ import annotations

import json
import random
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.trial.card import MeasuredCard, Where, fresh, opened, unheard, unwatched, zeroed
from scrubber.cuda import clearing, memory, selftest
from scrubber.cuda.card import KernelProgram, Span, Sweep
from scrubber.cuda.images import image_for
from scrubber.cuda.patterns import VECTOR, ZERO, Pattern, PatternKind, repeated
from scrubber.cuda.selftest import Clock
from tests.fakes.cuda.patterns import Words, pattern_bytes

SMALL = 2**22  # bytes
KERNELS = ("write", "check", "invert", *(program.value for program in KernelProgram))
CANARY = b"what a tenant left behind"
PATTERNS = (
    ZERO,
    repeated(0x55),
    Pattern(PatternKind.CONSTANT, 0x0123456789ABCDEF, 0xFEDCBA9876543210),
    Pattern(PatternKind.ADDRESS),
    Pattern(PatternKind.ADDRESS, 2**63 + 5, 7),
    Pattern(PatternKind.KEYED, 2**64 - 3, 0x1122334455667788),
)
PLACES = (0, 7, VECTOR + 8, 2**21 - 1, 2**21)  # where bits flip, beside one by chance and the last byte of all


def kernels(where: Where) -> list[str]:
    """Those that the image for this device has."""
    driver = opened(where).driver
    module = driver.load(str(image_for((driver.attribute(75), driver.attribute(76)))))
    return [name for name in KERNELS if driver.kernel(module, name) is not None]


def model(where: Where) -> list[str]:
    """Every kind on every pattern, held against numpy; what did not agree. Memory begins far into the whole."""
    card = opened(where)
    address = _allocated(card, SMALL)
    wrong = []
    for pattern in PATTERNS:
        for size, start in ((SMALL, 0), (SMALL - 5 * VECTOR, 2**37 + 3 * VECTOR)):
            wrong += [
                f"{pattern} {size} {start}: {what}" for what in _compared(card, pattern, Span(address, size, start))
            ]
    card.driver.put(address, bytes(SMALL))
    return wrong


def flips(where: Where) -> list[str]:
    """Single bits that are flipped: each found where it is, with what stands there. What was not is told."""
    card = opened(where)
    address = _allocated(card, SMALL)
    span, pattern = Span(address, SMALL, 2**40), fresh("flips")
    card.sweep(Sweep.WRITE, pattern, [span], unheard)
    wrong = []
    for place in (*PLACES, SMALL - 1, random.randrange(SMALL)):  # noqa: S311 - any place will do
        [held] = card.driver.get(address + place, 1)
        flipped = held ^ 1 << place % 8
        card.driver.put(address + place, bytes([flipped]))
        [found] = card.sweep(Sweep.CHECK, pattern, [span], unheard)
        if (found.count, found.offset, found.got) != (1, span.start + place, flipped):
            wrong.append(f"{place}: {found}")
        card.driver.put(address + place, bytes([held]))
    card.driver.put(address, bytes(SMALL))
    return wrong


def ladder(where: Where) -> int:
    """The bytes that can be taken."""
    return memory.take(opened(where)).size


def cleared(where: Where) -> dict[str, Any]:
    """A canary is planted, everything cleared and verified; then one byte is planted, and verified again."""
    card = opened(where)
    whole = memory.take(card)
    zeroed(whole)
    last = whole.spans[-1]
    places = [whole.spans[0].address + VECTOR, last.address + last.size - len(CANARY)]
    for place in places:
        card.driver.put(place, CANARY)
    done = clearing.clear(whole, secrets.token_bytes(16), ("random", "zero"), unwatched)
    verified = clearing.verify(whole, unwatched).mismatch
    read = [card.driver.get(place, len(CANARY)) == bytes(len(CANARY)) for place in places]
    card.driver.put(last.address + last.size - 1, b"\x01")
    planted = clearing.verify(whole, unwatched).mismatch
    zeroed(whole)
    return {
        "done": asdict(done),
        "verified": verified,
        "zeros": read,
        "planted": None if planted is None else asdict(planted),
        "size": whole.size,
        "planted_at": [VECTOR, whole.size - len(CANARY)],
    }


def scratched(where: Where) -> dict[str, int]:
    """The memory on the chip; what the driver says of it: the kernel's own, and what a block can have."""
    card = opened(where)
    done = asdict(clearing.scratch(card, secrets.token_bytes(16)))
    del done["left"]  # only the device knows it
    return {**done, "own": card.shared_of(KernelProgram.SCRATCH), "block": card.driver.attribute(97)}


def computed(where: Where) -> list[list[list[int]]]:
    """One computation twice, then another one: units with their results."""
    card, number = opened(where), secrets.randbits(63)
    runs = (card.everywhere(KernelProgram.EXACT, it) for it in (number, number, number + 1))
    return [[[unit.number, unit.wrong, unit.digest] for unit in run] for run in runs]


def units(where: Where) -> int:
    """How many multiprocessors there are."""
    return opened(where).units


def tested(where: Where) -> dict[str, Any]:
    """The self-test, and the seconds that it took."""
    whole = memory.take(opened(where))
    began = time.monotonic()
    done = selftest.run(whole, secrets.token_bytes(16), where.seconds, unwatched, Clock(time.monotonic, time.sleep))
    seconds = time.monotonic() - began
    return {**asdict(done), "seconds": seconds, "zero": clearing.verify(whole, unwatched).mismatch is None}


def endless(where: Where) -> None:
    """Passes over all memory until it is killed; in the middle of the first one a line is said."""
    whole = memory.take(opened(where))
    assert whole.spans
    said = False

    def step(_size: int) -> None:
        nonlocal said
        if not said:
            _say(None)
        said = True

    while True:
        whole.write(fresh("endless"), step)


def zeros(where: Where) -> int:
    """Leave nothing behind; the bytes that were made zero."""
    whole = memory.take(opened(where))
    zeroed(whole)
    return whole.size


DEEDS: dict[str, Callable[[Where], Any]] = {
    kind.__name__: kind
    for kind in (kernels, model, flips, ladder, cleared, scratched, computed, units, tested, endless, zeros)
}


def _compared(card: MeasuredCard, pattern: Pattern, span: Span) -> list[str]:
    """Written, checked against itself and against another, then turned round and back where that can be."""
    wanted = _model(pattern, span)
    card.sweep(Sweep.WRITE, pattern, [span], unheard)
    wrong = [] if card.driver.get(span.address, span.size) == wanted.tobytes() else ["write"]
    for other in (pattern, ZERO, Pattern(PatternKind.ADDRESS, 1, 2), fresh("another")):
        [found] = card.sweep(Sweep.CHECK, other, [span], unheard)
        if (found.count, found.offset, found.got) != _difference(wanted, _model(other, span), span.start):
            wrong.append(f"check against {other}: {found}")
    if pattern.kind is PatternKind.KEYED:
        return wrong
    for kind, now in ((Sweep.INVERT, pattern), (Sweep.INVERT_DOWN, pattern.flipped())):
        [found] = card.sweep(kind, now, [span], unheard)
        if found.count or card.driver.get(span.address, span.size) != _model(now.flipped(), span).tobytes():
            wrong.append(f"{kind.value}: {found}")
    return wrong


def _model(pattern: Pattern, span: Span) -> Words:
    return pattern_bytes(pattern.kind, pattern.first, pattern.second, span.start // VECTOR, span.size // VECTOR)


def _difference(held: Words, wanted: Words, start: int) -> tuple[int, int, int]:
    read = held.view(np.uint8).reshape(-1)
    places = np.flatnonzero(read != wanted.view(np.uint8).reshape(-1))
    if not len(places):
        return 0, 0, 0
    return len(places), start + int(places[0]), int(read[places[0]])


def _allocated(card: MeasuredCard, size: int) -> int:
    address = card.allocate(size)
    assert address is not None
    return address


def _say(seen: object) -> None:
    sys.stdout.write(json.dumps(seen) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _say(DEEDS[sys.argv[1]](Where(**json.load(sys.stdin))))
