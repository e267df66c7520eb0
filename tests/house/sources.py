"""The files of this repository that git does not ignore: all, the pages, and the modules that a person wrote."""

import ast
import re
from functools import cache
from pathlib import Path

from pathspec import GitIgnoreSpec

ROOT = Path(__file__).parents[2]
HOUSES = (
    "autoclave", "access", "remnant", "containers", "demo", "scrubber", "plugin", "scrub_api", "policies", "ground",
    "dashboards",
)  # fmt: skip

IGNORED = GitIgnoreSpec.from_lines([*(ROOT / ".gitignore").read_text().splitlines(), ".git"])
FILES = [
    path
    for top in sorted(ROOT.iterdir())
    if not IGNORED.match_file(top.name + "/" * top.is_dir())
    for path in ([top] if top.is_file() else sorted(top.rglob("*")))
    if path.is_file() and not IGNORED.match_file(path.relative_to(ROOT))
]
WRITTEN = [path for path in FILES if path.suffix == ".py" and "_pb2" not in path.name]  # by a person
PAGES = [path for path in FILES if path.suffix == ".md"]
FENCED = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.DOTALL | re.MULTILINE)


def place(path, line=None):
    name = path.relative_to(ROOT).as_posix()
    return f"{name}:{line}" if line else name


def modules(*tops):
    """Path and syntax tree of each module that a person wrote, in some or all top folders."""
    for path in WRITTEN:
        if not tops or path.relative_to(ROOT).parts[0] in tops:
            yield path, parsed(path)


@cache
def parsed(path):
    return ast.parse(path.read_text())
