"""What every model and every word of a policy is made of."""

from __future__ import annotations

from enum import Enum

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Model(BaseModel):
    """Strict and frozen: an unknown key is an error, and a policy in force never changes."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Word(str, Enum):
    """Base of the policy words, so that YAML text is taken as it stands."""


def impossible(found: str, expected: str, *about: str) -> PydanticCustomError:
    """Two values that are right alone and wrong together; ``about`` names both, the one to change first."""
    return PydanticCustomError(
        "combination", "found {found}, expected {expected}", {"found": found, "expected": expected, "about": about}
    )
