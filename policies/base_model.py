"""The base classes and types of all policy models and policy words."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

from ground.documents import units

Duration = Annotated[
    float,
    BeforeValidator(units.parse_duration),
    PlainSerializer(units.format_duration),
    WithJsonSchema({"type": "string", "pattern": f"^{units.DURATION.pattern}$"}),
]


class Model(BaseModel):
    """A strict and frozen model: an unknown key is an error, and a policy in force never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
