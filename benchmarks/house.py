"""How large the house is, and how often its files hand over to each other: ``python -m benchmarks.house``.

A hand-over is a call from a function of one product file into a function of another one. The resumption of a coroutine
is no call. The count is of the service process, and the least of five: other tasks of the service run beside. Calls
within ``scrubber/node`` are left out, because their number depends on the processes of the machine.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import signal
import tempfile
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

from benchmarks import rig
from demo.stage import Stage, run

ROOT = Path(__file__).parents[1]
PRODUCT = (  # what is installed
    "autoclave", "access", "remnant", "containers", "scrubber", "plugin", "scrub_api", "policies", "ground",
)  # fmt: skip
TIMES = 5
REDIRECTED = re.compile(r"> (docs/\S+\.md)$", re.MULTILINE)  # how `make docs` writes a page
MEASURED = ("docs/measurements/image.md", "docs/measurements/remnant.md")  # pages that a measurement writes
MADE_PART = re.compile(r"<!-- [^>]*: begin -->.*?<!-- [^>]*: end -->", re.DOTALL)
# Python imports this before the service: SIGUSR1 begins a count, SIGUSR2 ends it and writes it down.
COUNTER = """
import json, os, signal, sys, threading
HOUSES = ("scrubber", "plugin", "scrub_api", "policies", "ground")
PLACES = tuple(os.environ["HOUSE_ROOT"] + f"/{name}/" for name in HOUSES)
NODE = os.path.join(PLACES[0], "node")
state = {"on": False, "calls": 0, "files": set()}
def is_start(frame):
    code = frame.f_code.co_code
    return not frame.f_code.co_flags & 0x2A0 or frame.f_lasti < 0 or code[frame.f_lasti + 1] == 0
def profile(frame, event, _):
    if event == "call" and state["on"]:
        into = frame.f_code.co_filename
        if into.startswith(PLACES) and is_start(frame):
            back = frame.f_back.f_code.co_filename if frame.f_back else into
            if back != into and back.startswith(PLACES) and not (into.startswith(NODE) and back.startswith(NODE)):
                state["calls"] += 1
                state["files"] |= {back, into}
def begin(*_):
    state.update(on=True, calls=0, files=set())
def end(*_):
    state["on"] = False
    with open(os.environ["HOUSE_COUNT"] + ".new", "w") as file:
        json.dump([state["calls"], len(state["files"])], file)
    os.replace(os.environ["HOUSE_COUNT"] + ".new", os.environ["HOUSE_COUNT"])
if "scrubber" in sys.orig_argv[1:]:
    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    threading.setprofile(profile)
    sys.setprofile(profile)
"""


def written(*tops: str) -> list[Path]:
    """The Python files of these folders that a person wrote."""
    return [path for top in tops for path in sorted((ROOT / top).rglob("*.py")) if "_pb2" not in path.name]


def words() -> int:
    """The words under docs that a person wrote: without pages and parts of pages that a program makes."""
    made = {ROOT / name for name in (*MEASURED, *REDIRECTED.findall((ROOT / "Makefile").read_text()))}
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page not in made]
    texts = [MADE_PART.sub("", page.read_text()) for page in pages]
    return sum(any(map(str.isalnum, word)) for text in texts for word in text.split())


def code_lines(paths: list[Path]) -> int:
    """The lines that do something: without imports, blank lines, comments and docstrings."""
    return sum(len(_code_of(path)) for path in paths)


def _code_of(path: Path) -> set[int]:
    left_out = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    with path.open("rb") as file:
        tokens = [it for it in tokenize.tokenize(file.readline) if it.type not in {*left_out, tokenize.ENCODING}]
    code = {line for it in tokens for line in range(it.start[0], it.end[0] + 1)}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Expr) and _is_text(node.value)):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return code


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def used_once() -> float:
    """The private functions with one use, in a hundred functions."""
    functions, single = 0, 0
    for path in written(*PRODUCT):
        tree = ast.parse(path.read_text())
        names = [it.name for it in ast.walk(tree) if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef)]
        uses = Counter(it.id for it in ast.walk(tree) if isinstance(it, ast.Name))
        uses.update(it.attr for it in ast.walk(tree) if isinstance(it, ast.Attribute))
        functions += len(names)
        single += sum(uses[it] == 1 for it in names if it.startswith("_") and not it.startswith("__"))
    return 100 * single / functions


def floors() -> int:
    """The layers of ``scrubber`` in the import contracts."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [it["layers"] for it in contracts if it.get("containers") == ["scrubber"]]
    return len(layers)


def shared_class_names() -> list[str]:
    """The names of more than one class of the product."""
    trees = (ast.parse(path.read_text()) for path in written(*PRODUCT))
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1)


class Counted:
    """A stage whose service counts hand-overs."""

    def __init__(self, stage: Stage, file: Path) -> None:
        """The service of the stage runs and writes its count to this file."""
        self.stage, self.file = stage, file

    async def begin(self) -> None:
        """Count from here on."""
        self.file.unlink(missing_ok=True)
        os.kill(self.stage.service.pid, signal.SIGUSR1)
        await asyncio.sleep(0.05)  # Python runs a signal's handler between two instructions

    async def end(self) -> tuple[int, int]:
        """The hand-overs since ``begin``, and the number of files that took part."""
        os.kill(self.stage.service.pid, signal.SIGUSR2)
        while not self.file.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
        calls, files = json.loads(self.file.read_text())
        return calls, files


async def hand_overs() -> dict[str, tuple[int, int]]:
    """Of one ``Allocate`` and of one fast scrub."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "sitecustomize.py").write_text(COUNTER)
        os.environ |= {"PYTHONPATH": directory, "HOUSE_COUNT": f"{directory}/count", "HOUSE_ROOT": str(ROOT)}
        allocates, scrubs = [], []
        async with rig.service(TIMES) as stage, stage.scrubber() as service, stage.admin() as admin:
            counted = Counted(stage, Path(directory) / "count")
            for uuid in stage.uuids:
                await counted.begin()
                await service.acquire([uuid], announced=True)  # as the plugin asks
                allocates.append(await counted.end())
                await service.release([uuid])
                await rig.all_clean(stage)
                await counted.begin()
                async for _ in admin.scrub([uuid]):
                    pass
                scrubs.append(await counted.end())
    return {"Allocate": min(allocates), "fast scrub": min(scrubs)}


def main() -> None:
    """Print all of it."""
    shared = shared_class_names()
    product, tests = code_lines(written(*PRODUCT)), code_lines(written("tests"))
    sizes: dict[str, object] = {
        "product files": len(written(*PRODUCT)),
        "product lines of code": product,
        "test files": len(written("tests")),
        "test lines of code": tests,
        "test lines for a product line": round(tests / product, 2),
        "words under docs, without what is made": words(),
        "private functions with one use, in 100 functions": round(used_once(), 1),
        "modules at the top of scrubber": len(list((ROOT / "scrubber").glob("*.py"))),
        "import floors": floors(),
        "class names of more than one class": f"{len(shared)} ({', '.join(shared)})",
    }
    for what, (calls, files) in run(hand_overs()).items():
        sizes[f"hand-overs in one {what}"] = f"{calls} between {files} files"
    for what, size in sizes.items():
        print(f"{what}: {size}")


if __name__ == "__main__":
    main()
