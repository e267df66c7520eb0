"""How large the house is, and how often its files hand over to each other: ``python -m benchmarks.house``.

A hand-over is a call from a function of one product file into a function of another one. The resumption of a coroutine
is no call. Each count is of one process, and the least of five: other tasks of the process run beside. Calls within
``scrubber/node`` are left out, because their number depends on the processes of the machine. The count of a hook begins
with the kubelet's first question. For ``Allocate`` that is ``GetPreferredAllocation``, and the count ends when the pod
has a sandbox, so it has what ``Allocate`` sets off. Without a fence, nothing is counted of the hooks.
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
from collections.abc import Mapping
from pathlib import Path

from benchmarks import chain, rig
from benchmarks.hooks import Grouped
from demo import groups
from demo.installation import RESOURCE
from demo.stage import Stage, run
from demo.standins.pods import Container, Phase, Pod
from demo.standins.runtime import Devices
from plugin.kubelet_api import deviceplugin_pb2

ROOT = Path(__file__).parents[1]
PRODUCT = (  # what is installed
    "autoclave", "access", "remnant", "containers", "scrubber", "plugin", "scrub_api", "policies", "ground",
)  # fmt: skip
TIMES = 5
SETTLES = 1.2  # seconds after a scrub: the lists of plugin and kubelet show it
REDIRECTED = re.compile(r"> (docs/\S+\.md)$", re.MULTILINE)  # how `make docs` writes a page
MEASURED = ("docs/measurements/image.md", "docs/measurements/remnant.md")  # pages that a measurement writes
MADE_PART = re.compile(r"<!-- [^>]*: begin -->.*?<!-- [^>]*: end -->", re.DOTALL)
# Python imports this before a program: SIGUSR1 begins a count, SIGUSR2 ends it and writes it into the program's file.
COUNTER = """
import json, os, signal, sys, threading
HOUSES = ("scrubber", "plugin", "scrub_api", "policies", "ground")
PLACES = tuple(os.environ["HOUSE_ROOT"] + f"/{name}/" for name in HOUSES)
NODE = os.path.join(PLACES[0], "node")
program = next((it for it in ("scrubber", "plugin") if it in sys.orig_argv[1:]), "")
count = os.path.join(os.environ["HOUSE_COUNTS"], program)
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
    with open(count + ".new", "w") as file:
        json.dump([state["calls"], len(state["files"])], file)
    os.replace(count + ".new", count)
if program:
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
    """Programs that count their hand-overs."""

    def __init__(self, counts: Path, pids: Mapping[str, int]) -> None:
        """``pids``: by the verb of each program, which is also the name of the file that it writes."""
        self._counts, self._pids = counts, pids

    async def begin(self) -> None:
        """Count from here on."""
        for program, pid in self._pids.items():
            (self._counts / program).unlink(missing_ok=True)
            os.kill(pid, signal.SIGUSR1)
        await asyncio.sleep(0.05)  # Python runs a signal's handler between two instructions

    async def end(self) -> dict[str, tuple[int, int]]:
        """Of each program: the hand-overs since ``begin``, and the number of files that took part."""
        found = {}
        for program, pid in self._pids.items():
            os.kill(pid, signal.SIGUSR2)
            while not (self._counts / program).exists():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)
            calls, files = json.loads((self._counts / program).read_text())
            found[program] = (calls, files)
        return found


class BetweenHooks(Grouped):
    """Notes the count of each hook: between both there is a sandbox, after both the container."""

    counted: Counted

    def __init__(self, simulated: Path) -> None:
        super().__init__(simulated)
        self.found: dict[str, list[tuple[int, int]]] = {}

    async def open_sandbox(self, pod: Pod) -> None:
        """``PreStartContainer`` follows."""
        await super().open_sandbox(pod)
        await self._note("Allocate")
        await self.counted.begin()

    async def start(
        self, pod: Pod, container: Container, devices: Devices, response: deviceplugin_pb2.ContainerAllocateResponse
    ) -> None:
        """Both hooks have answered."""
        await self._note("PreStartContainer")
        await super().start(pod, container, devices, response)

    async def _note(self, hook: str) -> None:
        for program, count in (await self.counted.end()).items():
            self.found.setdefault(f"{hook} of a pod, in the {program}", []).append(count)


def hand_overs() -> dict[str, str]:
    """Of one ``Acquire``, one fast scrub, and both hooks, in words."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "sitecustomize.py").write_text(COUNTER)
        os.environ |= {"PYTHONPATH": directory, "HOUSE_COUNTS": directory, "HOUSE_ROOT": str(ROOT)}
        found = run(_service_alone(Path(directory)))
        why, hooks = run(_hooks(Path(directory)))
    words = {what: f"{calls} between {files} files" for what, (calls, files) in {**found, **hooks}.items()}
    return words | ({"Allocate and PreStartContainer of a pod": f"not counted: {why}"} if why else {})


async def _service_alone(counts: Path) -> dict[str, tuple[int, int]]:
    allocates, scrubs = [], []
    async with rig.service(TIMES) as stage, stage.scrubber() as service, stage.admin() as admin:
        counted = Counted(counts, {"scrubber": stage.service.pid})
        for uuid in stage.uuids:
            await counted.begin()
            await service.acquire([uuid], announced=True)  # as the plugin asks
            allocates.append((await counted.end())["scrubber"])
            await service.release([uuid])
            await rig.all_clean(stage)
            await counted.begin()
            async for _ in admin.scrub([uuid]):
                pass
            scrubs.append((await counted.end())["scrubber"])
    return {"Allocate": min(allocates), "fast scrub": min(scrubs)}


async def _hooks(counts: Path) -> tuple[str, dict[str, tuple[int, int]]]:
    """Why no fence holds pods, or empty; and if one does, the counts of both hooks of a clean GPU, in both programs."""
    async with rig.service(2, runs=BetweenHooks) as stage:
        if why := await _no_fence(stage):
            return why, {}
        await stage.start_node()
        runs = stage.containers
        assert isinstance(runs, BetweenHooks)  # noqa: S101 - for mypy
        runs.counted = Counted(counts, {"scrubber": stage.service.pid, "plugin": stage.plugin.pid})
        for number in range(TIMES):
            await asyncio.sleep(SETTLES)
            pod = Pod.of(f"pod-{number}", {RESOURCE: 1})
            await runs.counted.begin()
            if (await stage.kubelet.run(pod)).phase is not Phase.RUNNING:
                raise RuntimeError(f"a pod does not run: {pod.message}")
            await stage.kubelet.delete(pod)
            await chain.given_back(stage)
    return "", {what: min(each) for what, each in runs.found.items()}


async def _no_fence(stage: Stage) -> str:
    async with stage.admin() as admin:
        status = await admin.status()
    if all(device.fence == "hold" for device in status.devices):
        return ""
    return groups.why_none() or status.service.fence_lacks or "the fence keeps no pod off"


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
    sizes |= {f"hand-overs in one {what}": words for what, words in hand_overs().items()}
    for what, size in sizes.items():
        print(f"{what}: {size}")


if __name__ == "__main__":
    main()
