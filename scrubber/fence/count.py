"""Counts how often others have used each device.

An attempt is not a use if it was refused or is ignored. All others count, and so does each gap. A reading is taken when
all attempts that the kernel has told are judged. So what it counts only grows.
"""

from __future__ import annotations

from ground import boot, log
from policies.values import FenceMode
from scrubber.core.model import DeviceNumber
from scrubber.core.use_counter import Counted, FenceReading, Missed, UseCounter, UseReading
from scrubber.fence import proofs
from scrubber.fence.attempt_reader import AttemptReader
from scrubber.fence.ignored import Sources
from scrubber.fence.kernel.fence import Fence
from scrubber.fence.rules import Rules
from scrubber.node import clock

logger = log.get("fence")

_TRIES = 8  # readings of the counts, while attempts come
_PATIENCE = 0.5  # seconds in which the attempts are to be judged
SHARED = "pods have no control groups of their own on this node"
_TOO_MANY = "more processes ask for GPUs than can be looked up; `autoclave explain` names some of them"


class Count:
    """That of each device."""

    def __init__(self, fence: Fence, sources: Sources, rules: Rules, reader: AttemptReader) -> None:
        self._fence = fence
        self._sources = sources
        self._rules = rules
        self._reader = reader
        self._boot_id = boot.boot_id()
        self._counters: dict[frozenset[DeviceNumber], str] = {}  # their names
        self._judged: dict[str, int] = {}  # by counter: how many it had let through when all of them were judged

    def read(self, uuid: str) -> UseReading | None:
        """What the kernel does with a device for others, and has counted of them; None if it is not guarded."""
        rules, reader = self._rules, self._reader
        with rules.turn:
            reading = self._read(uuid)
            if not isinstance(reading, FenceReading) or self._judged.get(reading.counter) == reading.passed:
                return self._said(uuid, reading)
        if not reader.judging.acquire(timeout=_PATIENCE):
            return Missed(_TOO_MANY)
        try:
            for _ in range(_TRIES):
                end = reader.judge()
                with rules.turn:
                    reading = self._read(uuid)
                    if reader.is_at(end):
                        return self._said(uuid, reading)
            return Missed(_TOO_MANY)
        finally:
            reader.judging.release()

    def still(self, uuid: str, reading: FenceReading) -> bool:
        """Whether the kernel has let nobody through since this reading. False also if it does not say."""
        with self._rules.turn:
            numbers = self._rules.numbers.get(uuid)
            if not numbers or self._rules.ended or self._counter(numbers) != reading.counter:
                return False
            try:
                now = self._fence.read(numbers)
            except OSError:
                return False
        return (now.passed, now.gaps) == (reading.passed, reading.gaps)

    def _said(self, uuid: str, reading: FenceReading | Missed | None) -> UseReading | None:
        if not isinstance(reading, FenceReading):
            return reading
        self._judged[reading.counter] = reading.passed
        return Counted(UseCounter.FENCE, reading.uses, self._rules.missed.pop(uuid, ""), reading)

    def _read(self, uuid: str) -> FenceReading | Missed | None:
        numbers, terms, at = self._rules.numbers.get(uuid), self._sources.terms(uuid), clock.now()
        if not numbers or self._rules.ended:
            return None
        try:
            if why := self._rules.fault(uuid):
                return Missed(why)
            read = self._fence.read(numbers)
        except OSError as error:
            return Missed(f"the kernel does not say what the fence has counted: {error.strerror}")
        mode, why = (terms.mode, "") if terms.pods_have_groups else (FenceMode.OFF, SHARED)
        named, exempt, below = self._counter(numbers), terms.exempt_digest, self._sources.below
        return FenceReading(at, mode, why, named, **read._asdict(), exempt=exempt, below=below)

    def _counter(self, numbers: frozenset[DeviceNumber]) -> str:
        """Names what counts the uses of these numbers: the maps of the fence, in this boot."""
        if numbers not in self._counters:
            self._counters[numbers] = f"{proofs.named(f'{self._boot_id} {self._fence.counter}', numbers):016x}"
        return self._counters[numbers]

    def proven(self, uuid: str, proof: str, uses: int) -> None:
        """The device was proven clean, and nobody has used it since this many uses. A later run can ask for that."""
        with self._rules.turn:
            numbers = self._rules.numbers.get(uuid)
            if not numbers or self._rules.ended:
                return
            try:
                proofs.keep(self._fence, numbers, proof, uses)
            except OSError as error:  # then a later run makes a proof of its own
                logger.warning("a proof is not kept in the kernel", device=uuid, error=str(error))

    def at_proof(self, uuid: str, proof: str) -> Counted | None:
        """The uses at this proof. None: they were not told, or before a reboot."""
        with self._rules.turn:
            numbers = self._rules.numbers.get(uuid)
            if not numbers:
                return None
            try:
                uses = proofs.uses(self._fence, numbers, proof)
            except OSError:
                return None
            if uses is None:
                return None
            return Counted(
                UseCounter.FENCE, uses, fence=FenceReading(clock.now(), counter=self._counter(numbers), passed=uses)
            )
