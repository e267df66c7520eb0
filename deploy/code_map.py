"""The map of the code: each file with the first sentence of its docstring, in the order of the import contracts.

``python -m deploy.code_map > docs/map.md``
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TITLE = """\
# The map of the code

This page is made from the docstrings of the files (`make docs`); change those, not this. A file imports only from rooms
further down, from its own, or from one that it is in. [Architecture](architecture.md) says what each room must not do,
and how a request goes through them.
"""


def text() -> str:
    """The whole page."""
    return "\n".join([TITLE, *(section for package in _below("packages:") for section in _sections(ROOT / package))])


def _sections(room: Path) -> Iterator[str]:
    """One table for the files of a room, and one for those of each room in it."""
    order = {name: place for place, name in enumerate(_below(f"{room.name}: floors"))}
    inside = sorted(room.iterdir(), key=lambda it: (order.get(it.stem, -1), it.name))
    rows = [f"| `{file.name}` | {first_sentence(file)} |" for file in inside if _is_written(file)]
    if rows or (room / "__init__.py").exists():
        heading = f"## {room.relative_to(ROOT)}\n\n{first_sentence(room / '__init__.py')}\n"
        yield "\n".join([heading, *(["| file | |", "|---|---|", *rows, ""] if rows else [])])
    for folder in inside:
        if (folder / "__init__.py").exists():
            yield from _sections(folder)


def _is_written(file: Path) -> bool:
    """Whether it is a module that a person has written."""
    return file.suffix == ".py" and file.name != "__init__.py" and "_pb2" not in file.name


def first_sentence(file: Path) -> str:
    """What the file says of itself."""
    paragraph = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[.?]) (?=[A-Z`])", paragraph.replace("``", "`"))[0].replace("|", r"\|")


def _below(contract: str) -> Iterator[str]:
    """The names in the layers of a contract, top first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    for found in contracts:
        if found["name"].startswith(contract):
            yield from (name for layer in found["layers"] for name in layer.split(" | "))


if __name__ == "__main__":
    sys.stdout.write(text())
