"""The memory on the chip, what a later process can read of it, and the self-test."""

from __future__ import annotations

import secrets
import time
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.trial.card import MeasuredCard, Where, listening, opened, taken, unwatched, zeroed
from benchmarks.trial.figures import Measured, one
from benchmarks.trial.forks import Fork, Life, say
from scrubber.cuda import clearing, selftest
from scrubber.cuda.card import KernelProgram
from scrubber.cuda.selftest import Clock

KINDS = {
    "shared memory": (KernelProgram.PLANT, KernelProgram.LISTEN),
    "registers": (KernelProgram.PLANT_REGISTERS, KernelProgram.LISTEN_REGISTERS),
}


def scratch(where: Where) -> list[Measured]:
    """Units, tries and time; then the canary test, each time in new processes."""
    found: list[Measured] = list(_forked(partial(_scratched, where)))
    for what, (plant, listen) in KINDS.items():
        canary = secrets.randbits(32) | 0x01010101
        planted = one(
            f"{what}: words of the canary heard before it was planted", _heard(where, listen, canary), "words"
        )
        same = _heard(where, listen, canary, plant)
        _forked(partial(_planted, where, plant, canary))
        later = _heard(where, listen, canary)
        cleaned = _heard(where, listen, canary, plant, scratched=True)
        found += [
            planted,
            one(f"{what}: heard by the process that had planted it", same, "words", "of all launches, see above"),
            one(f"{what}: heard by another process, after the planter's end", later, "words"),
            one(f"{what}: heard by the planter, after the scratch", cleaned, "words"),
        ]
    _forked(partial(_scratched, where))  # leave the chip overwritten
    return found


def _scratched(where: Where, line: Connection) -> None:
    card = opened(where)
    took, reached = [], []
    for _ in range(where.rounds):
        began = time.perf_counter()
        done = clearing.scratch(card, secrets.token_bytes(16))
        took.append(1000 * (time.perf_counter() - began))
        reached.append(float(done.reached))
        if done.faulty:
            raise RuntimeError(f"cannot measure: {done.faulty} units do not hold what is written to them")
    figures = [
        Measured("scratch, shared memory and registers", tuple(took), "ms"),
        one("units", card.units, ""),
        Measured("units reached by both programs", tuple(reached), ""),
        one("launches of a program until all units were reached", card.runs / (2 * where.rounds), "", "on average"),
    ]
    say(line, figures)


def _planted(where: Where, plant: KernelProgram, canary: int, line: Connection) -> None:
    listening(where).everywhere(plant, canary)
    say(line, ())


def _heard(
    where: Where, listen: KernelProgram, canary: int, plant: KernelProgram | None = None, *, scratched: bool = False
) -> float:  # fmt: skip
    def life(line: Connection) -> None:
        card = listening(where)
        card.everywhere(listen, 0)  # load the program first: loading it later could overwrite what was planted
        if plant is not None:
            card.everywhere(plant, canary)
        if scratched:
            clearing.scratch(card, secrets.token_bytes(16))
        say(line, sum(unit.wrong for unit in card.everywhere(listen, canary)))

    return float(_forked(life))


def _forked(life: Life) -> Any:  # noqa: ANN401 - depends on the process
    fork = Fork(life)
    said = fork.hear()
    fork.end()
    return said


def tested(where: Where) -> list[Measured]:
    """The self-test within its time limit, and what the units compute."""
    card, whole = taken(where)
    began = time.perf_counter()
    done = selftest.run(whole, secrets.token_bytes(16), where.seconds, unwatched, Clock(time.monotonic, time.sleep))
    took = time.perf_counter() - began
    if done.mismatch is not None or done.deviating:
        raise RuntimeError(f"cannot measure: the device failed its test: {done.mismatch}, {done.deviating}")
    found = [
        one(f"self-test, in a box of {where.seconds:g} s", took, "s"),
        one("tests that came to their end", len(done.tests), "", ", ".join(done.tests)),
        one("tests that no time was left for", len(done.skipped), "", ", ".join(done.skipped)),
        one("memory tested", whole.size, "bytes"),
        one("units that computed, before and after", done.units, ""),
        *_digests(card, where.rounds),
    ]
    zeroed(whole)
    return found


def _digests(card: MeasuredCard, rounds: int) -> list[Measured]:
    took, most = [], 0
    for _ in range(rounds):
        number = secrets.randbits(64)
        began = time.perf_counter()
        units = card.everywhere(KernelProgram.EXACT, number)
        took.append(1000 * (time.perf_counter() - began))
        most = max(most, len({unit.digest for unit in units}))
    return [
        Measured("arithmetic on every unit, once", tuple(took), "ms"),
        one("different results of one computation, at most", most, "", "1: all units agree"),
    ]
