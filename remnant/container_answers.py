"""The answers of a container (ready, filled, looked, refused), a line each, checked before they are believed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ground.documents import strict_json
from ground.errors import plain
from remnant.round_result import GpuAndDriver, Look, Planted
from scrubber import __version__

UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LARGEST = 2**63  # more than any size
_SHOWN = 80  # characters of a line that is no answer, and as many of the reason


class NoAnswer(Exception):
    """A line is no answer of this program."""


@dataclass(frozen=True, slots=True)
class Ready:
    """CUDA's library is loaded, and was not called yet."""

    gpu: GpuAndDriver | None  # None: the container was told which one to use


@dataclass(frozen=True, slots=True)
class Filled:
    """What the first container wrote, by medium."""

    available: int  # memory that it could have
    planted: Mapping[str, Planted]


@dataclass(frozen=True, slots=True)
class Looked:
    """What the next container found, by medium."""

    looks: Mapping[str, Look]


@dataclass(frozen=True, slots=True)
class Refused:
    """The driver refused something, for this reason. It can be the answer to everything."""

    refused: str
    out_of_memory: bool


Answer = TypeVar("Answer", Ready, Filled, Looked)


def parse(kind: type[Answer], line: bytes, media: Collection[str] = ()) -> Answer | Refused:
    """The answer in a line, about exactly these media; NoAnswer if it is none of this kind."""
    try:
        value = strict_json.parse(line.decode())
        answer: Answer | Refused
        if isinstance(value, dict) and "refused" in value:
            refused = strict_json.build(Refused, value)
            answer = dataclasses.replace(refused, refused=plain(refused.refused))
        else:
            answer = strict_json.build(kind, value)
        _check(answer, media)
    except ValueError as error:
        said, why = (plain(text[:_SHOWN]) for text in (line.decode(errors="replace"), str(error)))
        raise NoAnswer(
            f"a container answered '{said}', which is not an answer of autoclave {__version__}: {why}"
        ) from error
    return answer


def _check(answer: Ready | Filled | Looked | Refused, media: Collection[str]) -> None:
    match answer:
        case Ready(gpu=GpuAndDriver() as gpu) if not UUID.fullmatch(gpu.uuid):
            raise ValueError("its GPU has no UUID")
        case Ready(gpu=GpuAndDriver() as gpu) if f"{gpu.model}{gpu.driver}" != plain(f"{gpu.model}{gpu.driver}"):
            raise ValueError("its GPU has no printable name")
        case Filled(planted=named) | Looked(looks=named) if named.keys() != set(media):
            raise ValueError("it is about other media")
    if not all(0 <= number < _LARGEST for number in _numbers(dataclasses.asdict(answer))):
        raise ValueError("it contains a number that is not a valid size")


def _numbers(value: object) -> Iterator[int]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _numbers(each)
    elif isinstance(value, int):
        yield value
