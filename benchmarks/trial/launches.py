"""Each kernel alone, in a process of its own: what the driver says of it, and which sizes of shared memory pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import c_uint32, c_uint64
from functools import partial

from benchmarks.trial.card import MeasuredCard, Where, opened_as
from benchmarks.trial.figures import Measured, Unproven, one, remark
from benchmarks.trial.forks import in_a_fork
from scrubber.cuda.card import KernelProgram, Span, Sweep
from scrubber.cuda.cuda_card import ROUNDS, THREADS
from scrubber.cuda.driver import Word, status_of
from scrubber.cuda.patterns import ZERO

BLOCK, UNIT, KEPT = 97, 81, 111  # attributes of a device
ATTRIBUTES = {
    BLOCK: "shared memory that a block can ask for",
    UNIT: "shared memory of a multiprocessor",
    KEPT: "shared memory of each block that the system keeps",
}
FACTS = {"registers": 4, "local bytes": 3, "static shared bytes": 1, "threads at most": 0, "binary": 6}  # of a kernel
SWEEPS = {"write": Sweep.WRITE, "check": Sweep.CHECK, "invert": Sweep.INVERT}
LONG = (KernelProgram.SCRATCH, KernelProgram.REGISTERS, KernelProgram.EXACT)  # with a number of 64 bits
RESULTS = 2**16  # bytes for what the kernels write

Tries = dict[str, str]  # what was tried, and what CUDA said
PASSED = "passed"


class BareCard(MeasuredCard):
    """Loads no kernel that is not asked for, so that each is seen alone."""

    def ready(self) -> None:
        """Only memory for the results."""
        if not self._found:
            self._found = self.driver.allocate(RESULTS)

    def attribute(self, number: int) -> int | None:
        """An attribute of the device; None: CUDA does not know it."""
        try:
            return self.driver.attribute(number)
        except self.driver.Error:
            return None

    def facts(self, name: str) -> str:
        """What the driver says of a kernel."""
        kernel = self._kernel(name)
        return ", ".join(f"{what} {kernel.attribute(number)}" for what, number in FACTS.items())

    def tried(self, name: str) -> Tries:
        """Launch a kernel once with each size."""
        if name in SWEEPS:
            return {"no shared memory": self._said(lambda: self.launch(SWEEPS[name], ZERO, Span(self._found, 0, 0)))}
        own, most, kept = self._kernel(name).own_shared, self.attribute(BLOCK) or 0, self.attribute(KEPT) or 0
        return {
            f"{size} bytes": self._said(partial(self._launch_program, KernelProgram(name), size))
            for size in sorted({most, most - own, most - own - kept}, reverse=True)
        }

    def _launch_program(self, program: KernelProgram, shared: int) -> None:
        kernel = self._kernel(program.value)
        kernel.allow_shared(shared)
        words: list[Word] = [c_uint64(0) if program in LONG else c_uint32(0)]
        words += [c_uint32(ROUNDS)] if program is KernelProgram.EXACT else []
        self.driver.put(self._found, bytes(RESULTS))
        kernel.launch(self.units, THREADS, [*words, c_uint64(self._found)], shared)

    def _said(self, launch: Callable[[], None]) -> str:
        try:
            launch()
            self.driver.get(self._found, RESULTS)  # waits for its end
        except self.driver.Error as error:
            return f"CUDA status {status_of(error)}: {error}"
        return PASSED


def measure(where: Where) -> Iterator[Measured]:
    """Facts of the device, then each kernel; Unproven if a kernel passes with no size."""
    for what, value in in_a_fork(partial(_attributes, where)).items():
        yield one(what, value, "bytes")
    refused = []
    for name in (*SWEEPS, *(program.value for program in KernelProgram)):
        facts, tries = in_a_fork(partial(_alone, where, name))
        yield remark(name, facts)
        yield from (remark(f"{name}: {what}", said) for what, said in tries.items())
        if PASSED not in tries.values():
            refused.append(name)
    if refused:
        raise Unproven(f"these kernels pass with no size of shared memory: {', '.join(refused)}")


def _attributes(where: Where) -> dict[str, int | None]:
    card = opened_as(BareCard, where)
    return {what: card.attribute(number) for number, what in ATTRIBUTES.items()}


def _alone(where: Where, name: str) -> tuple[str, Tries]:
    card = opened_as(BareCard, where)
    return card.facts(name), card.tried(name)
