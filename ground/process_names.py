"""How messages name a process, and how to remove such names from a message.

The user who runs a process chooses its name and may put anything into it. A name is therefore in quotation marks and
contains none. Logs, which others may collect, leave names out; the ledger and ``autoclave explain`` keep them.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any

NAMELESS = "a process"
_NAMES = re.compile(r'"[^"]*"(?= \(pid \d| in no container| in container )')


def describe(command: str, pid: int, where: str = "") -> str:
    """A process for operators, as in ``"python" (pid 12, no container)``."""
    return f"{quoted(command)} (pid {pid}{where and f', {where}'})"


def quoted(command: str) -> str:
    """The name alone, with a question mark for each character that could control a terminal."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in command.strip())
    return '"' + shown.replace('"', "'") + '"'


def hide(_logger: object, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For structlog: a line above level debug has "a process" in place of each name.

    The pid stays, so that operators find the process.
    """
    if level == "debug":
        return line
    return {key: _NAMES.sub(NAMELESS, value) if isinstance(value, str) else value for key, value in line.items()}
