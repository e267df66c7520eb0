"""How well does a reader find a line of the code, with nothing but the tree and the map of it?

``python -m benchmarks.reader draw 80 --seed 7 >lines.txt`` draws lines and prints them without their places.
The reader writes one line for each, "NUMBER FOLDER FILE" (files without folder and ending), and
``python -m benchmarks.reader grade 80 --seed 7 <guesses.txt`` counts the hits. ``--tree DIR FOLDER...`` draws from
another project instead: an anchor, to tell a good day of the reader from a good tree.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from pathlib import Path

from benchmarks.house import PRODUCT, ROOT

SHORTEST = 25  # characters; less says nothing of its place


def drawn(tree: Path, folders: list[str], count: int, seed: int) -> list[tuple[Path, str]]:
    """So many lines of code, and where each stands below ``tree``."""
    paths = [path for folder in folders for path in sorted((tree / folder).rglob("*.py"))]
    lines = [line for path in paths if "_pb2" not in path.name for line in _lines(tree, path)]
    return random.Random(seed).sample(lines, count)  # noqa: S311 - the same lines each time


def _lines(tree: Path, path: Path) -> list[tuple[Path, str]]:
    """The lines on which something is done or defined: no import, no docstring, nothing short."""
    text = path.read_text()
    numbers = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom) and not _is_docstring(node):
            numbers.add(node.lineno)
    lines = text.splitlines()
    texts = [lines[number - 1].strip() for number in sorted(numbers)]
    return [(path.relative_to(tree), line) for line in texts if len(line) >= SHORTEST]


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def hits(lines: list[tuple[Path, str]], guesses: str) -> tuple[int, int, list[str]]:
    """How many folders and files are right, and the lines whose folder is wrong."""
    words = {int(row[0]): row[1:] for row in map(str.split, guesses.splitlines()) if row and row[0].isdigit()}
    folders = files = 0
    missed = []
    for number, (place, line) in enumerate(lines, 1):
        folder, file = (*words.get(number, []), "", "")[:2]
        right = folder.strip("/") == place.parent.as_posix()
        folders += right
        files += right and file.removesuffix(".py") == place.stem
        if not right:
            missed.append(f"{number} {place} (not {folder}): {line}")
    return folders, files, missed


def main() -> None:
    """Draw, or grade."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reader", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("draw", "grade"))
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tree", nargs="+", default=[str(ROOT), *PRODUCT], metavar="DIR FOLDER")
    options = parser.parse_args()
    lines = drawn(Path(options.tree[0]), options.tree[1:], options.count, options.seed)
    if options.what == "draw":
        print("\n".join(f"{number:>3}  {line}" for number, (_, line) in enumerate(lines, 1)))
        return
    folders, files, missed = hits(lines, sys.stdin.read())
    print("\n".join(missed))
    print(f"{folders} folders and {files} files of {options.count} are right")


if __name__ == "__main__":
    main()
