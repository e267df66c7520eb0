"""Faults of a document that people write, such as a policy or a configuration: what is wrong, and where.

A message names values as YAML writes them (text "5", the number 5, a list), not as Python stores them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

Loc = tuple[str | int, ...]
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True)
class DocumentFault:
    """One fault with its position in the file. Lines and columns begin at 1."""

    source: str
    line: int
    column: int
    path: str
    found: str
    expected: str

    def __str__(self) -> str:
        subject = f"{self.path}: " if self.path else ""
        return f"{self.source}:{self.line}:{self.column}: {subject}found {self.found}, expected {self.expected}"


class DocumentError(Exception):
    """A document that cannot be used, with all its faults in the order of the file."""

    def __init__(self, *faults: DocumentFault) -> None:
        self.faults = tuple(sorted(dict.fromkeys(faults), key=lambda fault: (fault.line, fault.column)))
        super().__init__("\n".join(map(str, self.faults)))


class ImpossibleError(ValueError):
    """Values that are valid alone, but not together. ``about`` lists them, the best one to correct first."""

    def __init__(self, found: str, expected: str, *about: str) -> None:
        self.found, self.expected, self.about = found, expected, about
        super().__init__(f"found {found}, expected {expected}")


def path(loc: Loc) -> str:
    """A location in the notation of messages: ``rules[0].policy.budgets``."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part if _PLAIN_KEY.fullmatch(part) else quote(part)}"
    return text.removeprefix(".")


def describe(value: object) -> str:
    """A value as YAML writes it."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"text {quote(value)}"
        case dict():
            return "a mapping"
        case _:
            return "a list"


def quote(text: str) -> str:
    """Text in quotes, safe to print."""
    return f'"{safe(text)}"'


def safe(text: str, longest: int = 60) -> str:
    """Text on one line, shortened, without control characters for a terminal."""
    return json.dumps(text if len(text) <= longest else f"{text[:longest]}...")[1:-1]
