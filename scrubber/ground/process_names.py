"""How a process that may be anybody's is named, and how a sentence is told without such names.

Who runs a process chooses its name, and may put anything into it. In quotation marks, and with none inside, a name can
be told from the sentence around it: a log that others collect leaves it out, the ledger and ``explain`` keep it.
"""

from __future__ import annotations

import re

NAMELESS = "a process"
_NAMES = re.compile(r'"[^"]*"(?= \(pid \d| in no container| in container )')


def process(command: str, pid: int, where: str = "") -> str:
    """A process for operators, as in ``"python" (pid 12, no container)``."""
    return f"{quoted(command)} (pid {pid}{where and f', {where}'})"


def quoted(command: str) -> str:
    """Its name alone. Only what can be seen is shown, so that no name writes on anybody's terminal."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in command.strip())
    return '"' + shown.replace('"', "'") + '"'


def unnamed(sentence: str) -> str:
    """The same sentence, saying "a process" for each name; the numbers stay, by which an operator finds it."""
    return _NAMES.sub(NAMELESS, sentence)
