"""What is known about each step of a scrub, and which steps a path has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import NoneType

from scrubber.core.measured import Cleared, Restored, Scratched, Tested, Verified
from scrubber.core.model import Evicted, HealthRead, ScrubPath, Step


class Driver(Enum):
    """How a step uses the driver, which all devices share."""

    NOT = "not at all"
    BRIEFLY = "while the step runs"
    FOR_MEMORY = "from the first step on memory until the worker of all of them has ended"
    ALONE = "nobody else may use it meanwhile"


@dataclass(frozen=True, slots=True)
class Traits:
    """What the other rooms must know about a step. The policy says how long it may take (``policies/policy_model``)."""

    driver: Driver
    finds: type = NoneType  # what it must report; anything else proves nothing
    only_reads: bool = False  # it changes nothing on the device
    marked: bool = False  # a kill may not lose that it has begun: a row says so before
    counts: bool = False  # it reports all the time how many bytes it has done
    not_on: frozenset[ScrubPath] = frozenset()  # the paths without it


_FAST, _SLOW = ScrubPath.FAST, ScrubPath.SLOW
STEPS = {  # in the order in which they run
    Step.EVICT: Traits(Driver.NOT, Evicted),
    Step.RESET: Traits(Driver.ALONE, marked=True, not_on=frozenset({_FAST, _SLOW})),
    Step.CLEAR: Traits(Driver.FOR_MEMORY, Cleared, marked=True, counts=True),
    Step.VERIFY: Traits(Driver.FOR_MEMORY, Verified, counts=True, only_reads=True),
    Step.SCRATCH: Traits(Driver.FOR_MEMORY, Scratched),
    Step.SELFTEST: Traits(Driver.FOR_MEMORY, Tested, counts=True, not_on=frozenset({_FAST})),
    Step.SETTINGS: Traits(Driver.BRIEFLY, Restored),
    Step.HEALTH: Traits(Driver.BRIEFLY, HealthRead, only_reads=True),
}
PLANS = {path: tuple(step for step, traits in STEPS.items() if path not in traits.not_on) for path in ScrubPath}
FIRST_ON_MEMORY = next(step for step, traits in STEPS.items() if traits.driver is Driver.FOR_MEMORY)


def _shares(path: ScrubPath) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    after_memory = tuple(step for step in PLANS[path] if STEPS[step].driver is Driver.BRIEFLY)
    return PLANS[path][: -len(after_memory)], after_memory


SHARES = {path: _shares(path) for path in ScrubPath}  # the steps of the first worker of a path, and of the second one
