"""The memory on the chip, and the self-test."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from functools import partial

from benchmarks.trial.card import Listening, Where, opened, opened_as, taken, unwatched, zeroed
from benchmarks.trial.figures import Measured, one, rounds
from benchmarks.trial.forks import in_a_fork
from ground.quantities import quantity
from scrubber.cuda import clearing, selftest
from scrubber.cuda.card import KernelProgram
from scrubber.cuda.selftest import Clock

KINDS = {
    "shared memory": (KernelProgram.PLANT, KernelProgram.LISTEN),
    "registers": (KernelProgram.PLANT_REGISTERS, KernelProgram.LISTEN_REGISTERS),
}


def measure(where: Where) -> Iterator[Measured]:
    """Units, tries and time; then whether a scratch reaches what was planted."""
    yield from in_a_fork(partial(_scratched, where))
    for what, (plant, listen) in KINDS.items():
        canary = secrets.randbits(32) | 0x01010101
        planted = _heard(where, listen, canary, plant)
        yield one(f"{what}: words of a canary, heard by their planter", planted, "words", "of all launches, see above")
        cleaned = _heard(where, listen, canary, plant, scratched=True)
        yield one(f"{what}: heard by the planter, after the scratch", cleaned, "words")


def _scratched(where: Where) -> list[Measured]:
    card, ends = opened(where), where.share(1 / 4)
    took, reached = [], []
    unreached: int | None = None
    for _ in rounds(where.rounds, ends):
        began = time.perf_counter()
        done = clearing.scratch(card, secrets.token_bytes(16))
        took.append(1000 * (time.perf_counter() - began))
        reached.append(float(done.units_reached))
        unreached = done.shared_unreached_bytes
        if done.units_faulty:
            wrong = quantity(done.units_faulty, "unit does", "units do")
            raise RuntimeError(f"cannot measure: {wrong} not hold what is written to it")
    return [
        Measured("scratch, shared memory and registers", tuple(took), "ms"),
        one("units", card.units, ""),
        one("shared memory that the driver lets no program write", unreached, "bytes", "of all units"),
        Measured("units reached by both programs", tuple(reached), ""),
        one("launches of a program until all units were reached", card.runs / (2 * len(took)), "", "on average"),
    ]


def _heard(
    where: Where, listen: KernelProgram, canary: int, plant: KernelProgram, *, scratched: bool = False
) -> float:  # fmt: skip
    def life() -> int:
        card = opened_as(Listening, where)
        card.everywhere(listen, 0)  # load the program first: loading it later could overwrite what was planted
        card.everywhere(plant, canary)
        if scratched:
            clearing.scratch(card, secrets.token_bytes(16))
        return sum(unit.wrong for unit in card.everywhere(listen, canary))

    return float(in_a_fork(life))


def tested(where: Where) -> Iterator[Measured]:
    """The self-test within its time limit, and what the units compute."""
    card, whole = taken(where)
    began = time.perf_counter()
    done = selftest.run(whole, secrets.token_bytes(16), where.seconds, unwatched, Clock(time.monotonic, time.sleep))
    took = time.perf_counter() - began
    if done.mismatch is not None or done.deviating:
        raise RuntimeError(f"cannot measure: the device failed its test: {done.mismatch}, {done.deviating}")
    yield one(f"self-test, in a box of {where.seconds:g} s", took, "s")
    yield one("tests that came to their end", len(done.tests), "", ", ".join(done.tests))
    yield one("tests that no time was left for", len(done.skipped), "", ", ".join(done.skipped))
    yield one("memory tested", whole.size, "bytes")
    yield one("units that computed, before and after", done.units, "")
    computed, most = [], 0
    for _ in rounds(where.rounds, where.share(3 / 4)):
        number = secrets.randbits(64)
        began = time.perf_counter()
        units = card.everywhere(KernelProgram.EXACT, number)
        computed.append(1000 * (time.perf_counter() - began))
        most = max(most, len({unit.digest for unit in units}))
    yield Measured("arithmetic on every unit, once", tuple(computed), "ms")
    yield one("different results of one computation, at most", most, "", "1: all units agree")
    zeroed(whole)
