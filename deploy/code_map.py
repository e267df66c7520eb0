"""The map of the code: each file with its first sentence and its main names, in the order of the import contracts.

``python -m deploy.code_map > docs/map.md``
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = 8  # names of a file: a longer list hides the sentence
TITLE = """\
# The map of the code

This page is made from the files (`make docs`); change those, not this. Behind the first sentence of a file stand its
main names: classes and functions, those first that most other files use; then `.methods` of its classes. A file imports
only from rooms further down, from its own, or from one that it is in. [Architecture](architecture.md) says what each
room must not do, and how a request goes through them.
"""


def text() -> str:
    """The whole page."""
    return "\n".join([TITLE, *(section for package in _below("packages:") for section in _sections(ROOT / package))])


def _sections(room: Path) -> Iterator[str]:
    """One table for the files of a room, and one for those of each room in it."""
    order = {name: place for place, name in enumerate(_below(f"{room.name}: floors"))}
    inside = sorted(room.iterdir(), key=lambda path: (order.get(path.stem, -1), path.name))
    rows = [f"| `{file.name}` | {_sentences(file)[0]} |{_names(file)}" for file in inside if _is_written(file)]
    if (room / "__init__.py").exists():
        sentences = _sentences(room / "__init__.py")
        if names := _names(room / "__init__.py"):
            rows.insert(0, f"| `__init__.py` | {sentences[-1]} |{names}")
        heading = f"## {room.relative_to(ROOT)}\n\n{sentences[0]}\n"
        yield "\n".join([heading, *(["| file | | |", "|---|---|---|", *rows, ""] if rows else [])])
    for folder in inside:
        if (folder / "__init__.py").exists():
            yield from _sections(folder)


def _is_written(file: Path) -> bool:
    """Whether it is a module that a person has written."""
    return file.suffix == ".py" and file.name != "__init__.py" and "_pb2" not in file.name


def _sentences(file: Path) -> list[str]:
    """What the file says of itself, in its first paragraph."""
    paragraph = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[.?]) (?=[A-Z`])", paragraph.replace("``", "`").replace("|", r"\|"))


def _names(file: Path) -> str:
    """The cell with the main names of a file; nothing if all of its names are private."""
    tree = ast.parse(file.read_text())
    module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    names = sorted(_defined(tree), key=lambda name: -_uses(ROOT)[f"{module}.{name}"])
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    names += [f".{method}" for name in names if name in classes for method in _defined(classes[name])]
    return f" `{', '.join([*dict.fromkeys(names)][:MOST])}` |" if names else ""


def _defined(scope: ast.Module | ast.ClassDef) -> list[str]:
    """The public classes and functions of a module, or the public methods of a class, as they follow each other."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [node.name for node in scope.body if isinstance(node, kinds) and not node.name.startswith("_")]


@cache
def _uses(root: Path) -> Counter[str]:
    """How many files of the map use a name, which is written in full: ``ground.aio.gather``."""
    files = [file for package in _below("packages:") for file in (root / package).rglob("*.py")]
    return Counter(name for file in files for name in _used(ast.parse(file.read_text())))


def _used(tree: ast.Module) -> set[str]:
    """What a file imports, and what it takes from an imported module."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    paths = {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    taken = {f"{paths.get(ast.unparse(node.value))}.{node.attr}" for node in attributes}
    return {*paths.values(), *taken}


def _below(contract: str) -> Iterator[str]:
    """The names in the layers of a contract, top first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    for found in contracts:
        if found["name"].startswith(contract):
            yield from (name for layer in found["layers"] for name in layer.split(" | "))


if __name__ == "__main__":
    sys.stdout.write(text())
