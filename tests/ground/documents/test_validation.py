"""Validation reports every problem of the data and nothing else, for any model."""

from typing import Annotated, Self

import pytest
from pydantic import Field, ValidationError, model_validator

from ground.documents import validation
from ground.documents.faults import ImpossibleError
from policies.base_model import Model
from policies.hardware import WhenReset
from policies.policy_model import Policy


class Span(Model):
    """A model with two rules between its values."""

    low: int = 1
    high: int = 2
    left: int = 1
    right: int = 2

    @model_validator(mode="after")
    def low_is_lower(self) -> Self:
        """The first rule."""
        if self.low >= self.high:
            raise ImpossibleError("low with high", "low to be lower", "low", "high")
        return self

    @model_validator(mode="after")
    def left_is_left(self) -> Self:
        """The second rule, which pydantic does not check while the first is broken."""
        if self.left >= self.right:
            raise ImpossibleError("left with right", "left to be less", "left", "right")
        return self


class Required(Model):
    """A required value, and a value with a limit."""

    name: str
    size: Annotated[int, Field(gt=0)] = 1


def faults_of(model, data):
    return [(problem.loc, problem.found) for problem in validation.problems(model, data)]


def test_valid_data_has_no_problems():
    assert validation.problems(Policy, {}) == ()
    assert validation.build(Policy, {"reset": {"when": "never"}}).reset.when is WhenReset.NEVER


def test_invalid_data_cannot_be_built():
    with pytest.raises(ValidationError):
        validation.build(Policy, {"mode": "other"})


def test_two_broken_rules_of_one_model_are_both_reported():
    assert faults_of(Span, {"low": 9, "left": 9}) == [((), "low with high"), ((), "left with right")]


def test_a_contradiction_names_its_values():
    (problem,) = validation.problems(Span, {"low": 9})
    assert problem.places == (("low",), ("high",))
    assert problem.under(("a", 0)).places == (("a", 0, "low"), ("a", 0, "high"))


def test_an_invalid_entry_of_a_list_hides_no_contradiction():
    grace = "evict.grace 1h with timeouts 1, where the step evict ends after 15s"
    found = faults_of(Policy, {"evict": {"grace": "1h"}, "quarantine": {"signs": ["fabric", 0]}})
    assert found == [(("quarantine", "signs", 1), "the number 0"), ((), grace)]


def test_a_missing_key_is_one_fault_among_the_others():
    assert faults_of(Required, {"size": 0}) == [(("name",), "nothing"), (("size",), "the number 0")]


def test_a_removed_value_is_not_reported_as_missing():
    assert faults_of(Required, {"name": 5}) == [(("name",), "the number 5")]
