"""The answer of a probe in a container, checked before it is believed, and what can stand in the place of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from ground.documents import strict_json
from ground.errors import plain

MOST = 64  # nodes in a list of an answer
LONGEST = 240  # characters of a text in an answer
_SHOWN = 80  # characters of a line that is no answer
CONTEXT = frozenset({"made", "refused", "unknown"})  # unknown: the container has no library of the driver
SECRET = frozenset({"found", "not found", "unknown"})
OWNER = frozenset({"holding", "silent", "unasked"})


class NoAnswer(Exception):
    """A line is no answer of this probe."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe has seen and opened. A node is its path and its number, such as ``/dev/nvidia0 c:195:0``."""

    nonce: str
    control: bool  # whether the probe could open /dev/null, by the same function
    looked: tuple[str, ...]  # where it looked for nodes, or how else it came to one
    seen: tuple[str, ...]
    opened: tuple[str, ...]
    refused: tuple[str, ...]  # a node, or the way to one, and the name of the error
    context: str
    context_why: str
    secret: str
    owner: str  # what the holder of the GPU says, if it was asked
    variable: str  # NVIDIA_VISIBLE_DEVICES as the container has it
    user: int
    capabilities: str  # the effective ones, as the kernel writes them
    driver: str  # its version, as far as the container sees it
    system: str  # the kernel

    @property
    def numbers(self) -> frozenset[str]:
        """The numbers of the nodes that were opened."""
        return frozenset(node.rpartition(" ")[2] for node in self.opened)


@dataclass(frozen=True, slots=True)
class Refused:
    """The container was refused at admission."""

    why: str


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The container did not run, or what it said does not count."""

    why: str


@dataclass(frozen=True, slots=True)
class Unsuited:
    """There is no such way at this place."""

    why: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Whether the next container got a GPU while a process of its last owner, or of another pod, had it open."""

    given: bool  # the next container ran, and opened a GPU
    same: bool  # it was the same GPU
    still_open: bool  # that process had it open when the next container had opened it
    known: bool  # that process was seen until then, or its end; or kept-open has shown that a GPU in use is held back
    given_later: bool  # a container got the GPU after that process had ended


Outcome = Answer | Refused | Unanswered | Unsuited | HandOver


def parse(line: bytes, nonce: str) -> Answer:
    """The answer in a line; NoAnswer if it is none of the probe that was started with this nonce."""
    try:
        answer = strict_json.decode(Answer, line.decode())
        _check(answer, nonce)
    except ValueError as error:
        said, why = (plain(text[:_SHOWN]) for text in (line.decode(errors="replace"), str(error)))
        raise NoAnswer(f"a container answered '{said}', which is no answer of the probe: {why}") from error
    return answer


def _check(answer: Answer, nonce: str) -> None:
    if answer.nonce != nonce:
        raise ValueError("it is of another run")
    if answer.context not in CONTEXT or answer.secret not in SECRET or answer.owner not in OWNER:
        raise ValueError("it has an unknown word")
    for text in _texts(dataclasses.astuple(answer)):
        if text != plain(text) or len(text) > LONGEST:
            raise ValueError("a text in it is too long or cannot be printed")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        if len(value) > MOST:
            raise ValueError("a list in it is too long")
        for each in value:
            yield from _texts(each)
