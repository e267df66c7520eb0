"""What is wrong with plain data that should become a model, in words for operators."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ground.documents.faults import DocumentFault, ImpossibleError, Loc, describe, path
from ground.documents.units import format_duration
from ground.documents.yaml_tree import YamlNode

M = TypeVar("M", bound=BaseModel)

_KINDS = {
    "model_type": "a mapping of keys and values",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys and values",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_too_short": "text that is not empty",
}
_KEY = "[key]"  # pydantic marks an invalid key in this way
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem at a location in the data."""

    loc: Loc
    found: str
    expected: str
    at_key: bool = False  # the key is wrong, not its value
    about: tuple[Loc, ...] = ()  # for values that are not valid together: their locations
    missing: bool = False  # the key is missing

    @property
    def places(self) -> tuple[Loc, ...]:
        """Where the problem can be corrected, the best location first."""
        return self.about or (self.loc,)

    def fault(self, root: YamlNode, source: str) -> DocumentFault:
        """The problem as a fault of the file that ``root`` was read from: at the best location that the file has."""
        loc = next(filter(root.find, self.places), self.loc)
        node = root.nearest(loc)
        place = node.key if self.at_key else node.place
        return DocumentFault(source, place.line, place.column, path(loc), self.found, self.expected)

    def under(self, base: Loc) -> Problem:
        """The same problem with a location relative to an outer mapping."""
        return replace(self, loc=(*base, *self.loc), about=tuple((*base, *part) for part in self.about))


def problems(model: type[BaseModel], data: object) -> tuple[Problem, ...]:
    """Everything that is wrong with the data. If nothing is, ``build`` succeeds.

    Pydantic checks combinations of values only when all fields are valid. So this removes the invalid values and checks
    again. It drops a problem that the removal may have caused.
    """
    kept: dict[Problem, None] = {}
    removed: list[Problem] = []
    while problems := _problems(model, data):
        kept.update((problem, None) for problem in problems if not _touched(problem, removed))
        before, data = data, functools.reduce(_without, (loc for problem in problems for loc in problem.places), data)
        if data == before:  # a missing key cannot be removed
            break
        removed += problems
    return tuple(kept)


def build(model: type[M], data: object) -> M:
    """The model of data in which ``problems`` found nothing.

    It goes through JSON, because pydantic's strict mode for JSON fits YAML: text becomes an enum, and a list becomes a
    tuple.
    """
    return model.model_validate_json(json.dumps(data))


def _problems(model: type[BaseModel], data: object) -> tuple[Problem, ...]:
    try:
        build(model, data)
    except ValidationError as error:
        return tuple(_problem(model, details) for details in error.errors(include_url=False))
    return ()


def _problem(model: type[BaseModel], error: ErrorDetails) -> Problem:
    loc, context = error["loc"], error.get("ctx", {})
    found = describe(error["input"])
    if loc and loc[-1] == _KEY:
        return replace(_problem(model, {**error, "loc": loc[:-1]}), at_key=True)
    match error["type"]:
        case "extra_forbidden":
            holder = _model_at(model, loc[:-1])
            hint = _nearest(str(loc[-1]), holder, error["input"])
            expected = f"one of {', '.join(holder.model_fields)}{hint}"
            return Problem(loc, "an unknown key", expected, at_key=True)
        case "missing":
            return Problem(loc, "nothing", f"the key {loc[-1]}", missing=True)
        case "enum":
            words = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            near = difflib.get_close_matches(str(error["input"]), words, n=1)
            return Problem(loc, found, f"{' or '.join(words)}{f' (did you mean {near[0]}?)' if near else ''}")
        case "value_error" if isinstance(impossible := context["error"], ImpossibleError):
            about = tuple((*loc, *part.split(".")) for part in impossible.about)
            return Problem(loc, impossible.found, impossible.expected, about=about)
        case "value_error":
            return Problem(loc, found, str(context["error"]))
        case "too_long" | "too_short" as kind:
            bound = f"at most {context['max_length']}" if kind == "too_long" else f"at least {context['min_length']}"
            return Problem(loc, f"{context['actual_length']} entries", bound)
        case kind if kind in _BOUNDS:
            return Problem(loc, found, _bound(kind, context, error["input"]))
        case kind:
            return Problem(loc, found, _KINDS.get(kind, error["msg"]))


def _bound(kind: str, context: Mapping[str, float], value: object) -> str:
    """A limit in the unit of the input. Only durations are numbers that are written as text."""
    name, words = _BOUNDS[kind]
    return f"{words} {format_duration(context[name]) if isinstance(value, str) else context[name]}"


def _nearest(wrong: str, model: type[BaseModel], value: object) -> str:
    """The known key that is most like a wrong one, also one of an inner mapping, such as ``paths`` in ``policy``."""
    keys = dict(_keys(model))
    names = [name.rpartition(".")[2] for name in keys]
    near = difflib.get_close_matches(wrong, names, n=1)
    if not near:
        return ""
    key = list(keys)[names.index(near[0])]  # the outermost of several
    inner = keys[key]
    within = f", with {' or '.join(inner.model_fields)}" if inner is not None and not isinstance(value, dict) else ""
    return f" (did you mean {key}{within}?)"


def _keys(model: type[BaseModel], before: str = "") -> Iterator[tuple[str, type[BaseModel] | None]]:
    """The keys that a mapping may have, then those of the mappings in it, each with its own model."""
    own = {name: _model(field.annotation) for name, field in model.model_fields.items()}
    yield from ((f"{before}{name}", inner) for name, inner in own.items())
    for name, inner in own.items():
        if inner is not None:
            yield from _keys(inner, f"{before}{name}.")


def _model_at(model: type[BaseModel], loc: Loc) -> type[BaseModel]:
    """The model of the mapping at this location."""
    for part in loc:
        if isinstance(part, str):
            annotation = model.model_fields[part].annotation
            model = next(filter(None, map(_model, (annotation, *get_args(annotation)))))
    return model


def _model(kind: object) -> type[BaseModel] | None:
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _without(data: object, loc: Loc) -> object:
    """The data without the value at a location, or without the whole list if the value is one of its entries."""
    match data, loc:
        case dict(), (key,) | (key, int()):
            return {name: value for name, value in data.items() if name != key}
        case dict(), (key, *rest) if key in data:
            return {**data, key: _without(data[key], tuple(rest))}
        case list(), (int() as index, *rest) if index < len(data):
            return [*data[:index], _without(data[index], tuple(rest)), *data[index + 1 :]]
    return data


def _touched(problem: Problem, removed: list[Problem]) -> bool:
    """Whether the removal of values may have caused a problem."""
    if not problem.about:
        return any(problem.loc == other.loc for other in removed)
    return any(_affects(other, part) for other in removed for part in problem.about)


def _affects(removed: Problem, part: Loc) -> bool:
    """Whether a value was removed with a problem, or is beside a key that may be its misspelling."""
    if removed.about:
        return part in removed.about
    return part[: len(removed.loc)] == removed.loc or part[:-1] == removed.loc[:-1]
