"""The look of all pages: colours of states, words for numbers, thresholds.

The colours are those of Okabe and Ito, which people with any colour vision can distinguish. A test measures this.
"""

from __future__ import annotations

from itertools import cycle

from grafana_foundation_sdk.models.dashboard import Threshold, ValueMap, ValueMapping, ValueMappingResult

from scrubber.core.model import Availability, State, Step, Trigger

GREEN, YELLOW, ORANGE, VERMILLION = "#009E73", "#F0E442", "#E69F00", "#D55E00"
SKY, BLUE, PURPLE, GREY = "#56B4E9", "#0072B2", "#CC79A7", "#999999"
GOOD, WARN, BAD, PLAIN = GREEN, ORANGE, VERMILLION, "text"

STATES = {
    State.UNKNOWN: GREY,
    State.DIRTY: ORANGE,
    State.SCRUBBING: YELLOW,
    State.CLEAN: GREEN,
    State.GRANTED: SKY,
    State.IN_USE: BLUE,
    State.QUARANTINED: VERMILLION,
}
STATE_COLOURS = {state.value: colour for state, colour in STATES.items()}
GROUPS = {
    Availability.AVAILABLE: GREEN,
    Availability.IN_USE: BLUE,
    Availability.PREPARING: YELLOW,
    Availability.BLOCKED: ORANGE,
    Availability.QUARANTINED: VERMILLION,
}
GROUP_COLOURS = {group.value: colour for group, colour in GROUPS.items()}
HEALTH_COLOURS = {"/ healthy$/": GREEN, "/ unhealthy$/": ORANGE}
PATH_COLOURS = {"fast": SKY, "slow": PURPLE, "reset": ORANGE}
QUANTILE_COLOURS = {"p50": SKY, "p95": ORANGE, "p99": VERMILLION}

# A series with this name means that the collector works and there is nothing to show.
NONE = "none"
NO_ROW = -1


def distinct_colours(*names: str) -> dict[str, str]:
    """Different colours for a few names that are neither good nor bad."""
    return dict(zip(names, cycle((SKY, ORANGE, GREEN, PURPLE, YELLOW, BLUE)), strict=False))


def value_words(said: dict[float, tuple[str, str]]) -> list[ValueMapping]:
    """Value mappings: numbers shown as words, each in its colour."""
    results = {
        f"{number:g}": ValueMappingResult(text=word, color=colour, index=place)
        for place, (number, (word, colour)) in enumerate(said.items())
    }
    return [ValueMap(options=results)]


STEP_COLOURS = distinct_colours(*(step.value for step in Step))
TRIGGER_COLOURS = distinct_colours(*(trigger.value for trigger in Trigger))
NUMBER_OF = {state: number for number, state in enumerate(State)}
STATE_WORDS = value_words({number: (state.value, STATES[state]) for state, number in NUMBER_OF.items()})


def yes_or_no(yes: str, no: str) -> list[ValueMapping]:
    """Words for a metric whose 1 is good."""
    return value_words({1: (yes, GOOD), 0: (no, BAD)})


def no_or_yes(no: str, yes: str) -> list[ValueMapping]:
    """Words for a metric whose 1 is bad."""
    return value_words({0: (no, GOOD), 1: (yes, BAD)})


Levels = tuple[tuple[float, str], ...]

NEUTRAL: Levels = ()  # a value that is neither good nor bad
SHOULD_BE_ZERO: Levels = ((0, GOOD), (1, BAD))
BETTER_ZERO: Levels = ((0, GOOD), (1, WARN))


def steps(levels: Levels) -> list[Threshold]:
    """Thresholds with their colours. Without any, Grafana colours values from 80 on red."""
    return [Threshold(value=None, color=PLAIN), *(Threshold(value=value, color=colour) for value, colour in levels)]
