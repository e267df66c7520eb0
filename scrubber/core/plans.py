"""What is known of each step of a scrub, and which steps a path has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from policies.policy_model import OnChip, Policy
from scrubber.core.model import ScrubPath, Step


class Driver(Enum):
    """How a step uses the driver, which all devices share."""

    NOT = "not at all"
    BRIEFLY = "while the step runs"
    FOR_MEMORY = "from the first step on memory until the worker of all of them has ended"
    ALONE = "nobody else may use it meanwhile"


@dataclass(frozen=True, slots=True)
class Traits:
    """What the other rooms must know of a step. How long it may take is the policy's (``policies/policy_model``)."""

    driver: Driver
    only_reads: bool = False  # it changes nothing on the device
    measures: bool = False  # it must say how much memory it covered
    marked: bool = False  # a kill may not lose that it has begun: a row says so before
    counts: bool = False  # it reports all the time how many bytes it has done
    not_on: frozenset[ScrubPath] = frozenset()  # the paths without it


_FAST, _SLOW = ScrubPath.FAST, ScrubPath.SLOW
STEPS = {  # in the order in which they run
    Step.EVICT: Traits(Driver.NOT),
    Step.RESET: Traits(Driver.ALONE, marked=True, not_on=frozenset({_FAST, _SLOW})),
    Step.CLEAR: Traits(Driver.FOR_MEMORY, marked=True, counts=True, measures=True),
    Step.VERIFY: Traits(Driver.FOR_MEMORY, counts=True, measures=True, only_reads=True),
    Step.SCRATCH: Traits(Driver.FOR_MEMORY),
    Step.SELFTEST: Traits(Driver.FOR_MEMORY, counts=True, not_on=frozenset({_FAST})),
    Step.SETTINGS: Traits(Driver.BRIEFLY),
    Step.HEALTH: Traits(Driver.BRIEFLY, only_reads=True),
}
PLANS = {path: tuple(step for step, traits in STEPS.items() if path not in traits.not_on) for path in ScrubPath}
FIRST_ON_MEMORY = next(step for step, traits in STEPS.items() if traits.driver is Driver.FOR_MEMORY)
MEASURED = tuple(step for step, traits in STEPS.items() if traits.measures)


def plan(path: ScrubPath, policy: Policy) -> tuple[Step, ...]:
    """The steps of a path, without those that the policy leaves out in writing."""
    leaves_chip = path is ScrubPath.FAST and policy.clear.on_chip is OnChip.SLOW_PATH
    return tuple(step for step in PLANS[path] if not (step is Step.SCRATCH and leaves_chip))
