"""The tests of the core bite: each mutant of its source turns them red.

A mutant is one small change to a *copy* of the tree: a comparison turned round, an ``and`` become ``or``, a word
swapped for its neighbour, a row of a table gone. Planted mutants say what each promise stands on and run in every gate;
of the generated ones the gate runs an even spread, ``make mutate`` all.
"""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from policies import model as policy_words
from scrubber.core import model as words
from scrubber.ground import errors

ROOT = Path(__file__).parents[2]
MUTATED = (
    "states", "acquire", "start", "release", "fence", "ownership", "proof", "pauses", "siblings", "presence", "burn_in",
    "leftover", "upkeep", "offering", "verdict",
)  # fmt: skip
GENERATED_FROM = tuple(f"scrubber/core/{it}.py" for it in MUTATED)
IN_GATE = 8
LONG = 100  # seconds that nobody's tests take
RED = {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}  # a life that cannot be led ends the collection
NEGATED = {
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}
ENUMS = {
    kind.__name__: list(kind)
    for module in (words, policy_words, errors)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Enum) and list(kind)
}


@dataclass(frozen=True)
class Mutant:
    """One place of one file, and what stands there instead."""

    file: str
    old: str
    new: str
    nth: int = 0  # which of several places that read the same
    tests: str = "tests/core"
    where: str = "planted"

    def __str__(self) -> str:
        return f"{Path(self.file).stem} {self.where}: {self.old} => {self.new}"

    @contextmanager
    def planted(self, tree):
        place = tree / self.file
        text, times = place.read_text(), place.stat()
        pieces = text.split(self.old)
        assert len(pieces) > self.nth + 1, f"{self.file} does not read {self.old!r} any more: mend this mutant"
        before, after = self.old.join(pieces[: self.nth + 1]), self.old.join(pieces[self.nth + 1 :])
        mutated = before + self.new + after
        ast.parse(mutated)  # it must be wrong, not broken
        try:
            place.write_text(mutated)
            yield
        finally:
            place.write_text(text)
            os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))  # its bytecode is good again


STATES, VERDICT = GENERATED_FROM[0], GENERATED_FROM[-1]
LEFTOVER = "scrubber/core/leftover.py"
ACQUIRE = "scrubber/core/acquire.py"
ROSTER = "tests/steps/test_roster.py"
PLANTED = [
    Mutant(STATES, "ev.ScrubFailed: State.DIRTY", "ev.ScrubFailed: State.CLEAN"),
    Mutant(STATES, "ev.ScrubInterrupted: State.DIRTY", "ev.ScrubInterrupted: State.CLEAN"),
    Mutant(STATES, "ev.Released: State.DIRTY", "ev.Released: State.CLEAN"),
    Mutant(STATES, "ev.Distrusted: State.UNKNOWN", "ev.Distrusted: State.CLEAN", nth=2),
    Mutant(LEFTOVER, "holder.started <= tenancy[1]", "holder.started"),
    Mutant(VERDICT, "is not Outcome.PASSED", "not in (Outcome.PASSED, Outcome.TIMED_OUT)"),
    Mutant(VERDICT, "is not Outcome.PASSED", "is not Outcome.PASSED and step is not Step.VERIFY"),
    Mutant(VERDICT, "(Step.EVICT, Step.CLEAR, Step.VERIFY,", "(Step.EVICT, Step.VERIFY,"),
    Mutant(VERDICT, "Step.RESET, Step.CLEAR, Step.VERIFY,", "Step.RESET, Step.CLEAR,"),
    Mutant(VERDICT, "Step.VERIFY, Step.SCRATCH, Step.SELFTEST,", "Step.VERIFY, Step.SELFTEST,"),
    Mutant(VERDICT, "Step.VERIFY, Step.SCRATCH, Step.SELFTEST,", "Step.VERIFY, Step.SCRATCH,"),
    Mutant(VERDICT, "if reached != units:", "if reached < units - 1:"),
    Mutant(VERDICT, "if not found.tests", "if not found.units"),
    Mutant(VERDICT, "or findings.units_faulty", "or not findings"),
    Mutant(VERDICT, "if findings.deviating else None", "if findings.deviating and not findings.tests else None"),
    Mutant(VERDICT, "if explained <= rest and", "if"),
    Mutant(ACQUIRE, "if fresh and record.state in (State.GRANTED, State.IN_USE):", "if False:"),
    Mutant("scrubber/devices/simulated/gpu.py", "if faults.skip_scratch", "if True", tests=ROSTER),
    Mutant("scrubber/devices/simulated/gpu.py", "if faults.skip_clears else wanted", "if wanted else ()", tests=ROSTER),
    Mutant("scrubber/steps/clear.py", "if cleared.mismatch is not None", "if False", tests=ROSTER),
    Mutant("scrubber/steps/verify.py", "if verified.mismatch is not None", "if False", tests=ROSTER),
    Mutant("scrubber/steps/verify.py", "if verified.covered_bytes == 0", "if False", tests=ROSTER),
    Mutant("scrubber/steps/scratch.py", "if found.faulty", "if False", tests=ROSTER),
    Mutant("scrubber/steps/scratch.py", "found.reached != found.units or", "", tests=ROSTER),
    Mutant("scrubber/steps/scratch.py", " or found.reached <= 0", "", tests=ROSTER),
    Mutant("scrubber/steps/selftest.py", "is not None", "is None", tests=ROSTER),
    Mutant("scrubber/steps/selftest.py", "if tested.deviating", "if False", tests=ROSTER),
    Mutant("scrubber/steps/selftest.py", "if not tested.tests", "if False", tests=ROSTER),
    Mutant("scrubber/steps/selftest.py", "if not tested.covered_bytes and not tested.units", "if False", tests=ROSTER),
]

# Mutants that nobody could tell from the original, each with the reason. Where a test could, write the test instead.
EQUIVALENT: dict[str, str] = {
    "offering _by_record: State.QUARANTINED => State.IN_USE": "its quarantine is answered above it",
}


def changes(node) -> Iterator[tuple[ast.expr, str]]:
    """What could be wrong at a node: the part of it that changes, and its new text."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in NEGATED:
            yield node, f"({ast.unparse(ast.Compare(left, [NEGATED[type(op)]()], [right]))})"
        case ast.BoolOp(op=op, values=values):
            yield node, f"({ast.unparse(ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Attribute(value=ast.Name(id=kind), attr=name) if kind in ENUMS:
            members = [member.name for member in ENUMS[kind]]
            yield node, f"{kind}.{members[members.index(name) - 1]}"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.match_case(guard=ast.expr() as test):
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):  # those turn round by themselves
                yield test, f"(not {ast.unparse(test)})"


def reachable(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, except decorators (how a class is made) and f-strings (CPython 3.11 misplaces their parts)."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name != "decorator_list" and not isinstance(child, ast.JoinedStr):
                yield child
                yield from reachable(child)


def generated(file: str) -> Iterator[Mutant]:
    """Every mutant of a file."""
    text = (ROOT / file).read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()
    for top in ast.parse(text).body:
        for part, new in (change for node in reachable(top) for change in changes(node)):
            start = starts[part.lineno - 1] + part.col_offset
            end = starts[(part.end_lineno or 0) - 1] + (part.end_col_offset or 0)
            old = raw[start:end].decode()
            nth = raw[:start].decode().count(old)
            yield Mutant(file, old, new, nth, where=getattr(top, "name", "table"))


def pytest_generate_tests(metafunc):
    if "mutant" in metafunc.fixturenames:
        mutants = [mutant for file in GENERATED_FROM for mutant in generated(file) if str(mutant) not in EQUIVALENT]
        step = 1 if metafunc.config.getoption("--night") else max(1, len(mutants) // IN_GATE)
        metafunc.parametrize("mutant", [*PLANTED, *mutants[::step]], ids=str)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the sources and of the tests that judge them."""
    # Bytecode that another worker just writes is away before it could be copied.
    tree, rubbish = tmp_path_factory.mktemp("tree"), shutil.ignore_patterns("house", "kernels", "*.pyc.*")
    for room in ("scrubber", "policies", "tests"):
        shutil.copytree(ROOT / room, tree / room, ignore=rubbish)
    shutil.copy(ROOT / "pyproject.toml", tree)
    return tree


@pytest.fixture
def tree(copy):
    """The copy, which a test leaves as it was: what one mutant left behind would turn the tests red for the next."""
    files = {*GENERATED_FROM, *(mutant.file for mutant in PLANTED)}
    before = {file: (copy / file).read_bytes() for file in files}
    yield copy
    assert {file: (copy / file).read_bytes() for file in files} == before


def run(tree, *command):
    """Run Python so that it imports the copy, and leave no bytecode that outlives a change within the second.

    Returns how it ended and all that it said. One that does not end is made to say where it stands.
    """
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    python = [sys.executable, "-X", "faulthandler", *command]
    said = tree / "said"  # no pipe: whoever inherited one could keep us waiting for its end
    with said.open("w") as out:
        process = subprocess.Popen(python, cwd=tree, env=env, stdout=out, stderr=subprocess.STDOUT)
        try:
            return process.wait(LONG), said.read_text()
        except subprocess.TimeoutExpired:
            [state] = re.findall("^State:.*", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
            process.send_signal(signal.SIGABRT)
            process.send_signal(signal.SIGCONT)  # one that was stopped must wake to die
            process.wait()
            pytest.fail(f"it did not end within {LONG} s:\n{said.read_text()}\n{state}")


def judge(tree, tests, file=""):
    """The tests that bear the name of the file come first: they are the likeliest to find what is wrong with it."""
    options = ["-x", "-q", "--timeout=30", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options += ["-o", "faulthandler_timeout=20"]
    # Without a place of its own, a run that ends clears away what others left on the machine, however long that takes.
    options += ["--basetemp", str(tree / "tmp")]
    place = tree / tests
    files = sorted(place.glob("test_*.py")) if place.is_dir() else [place]
    files.sort(key=lambda it: not it.name.startswith(f"test_{Path(file).stem}"))
    return run(tree, "-m", "pytest", *options, *map(str, files))


def test_the_copy_is_what_is_judged(tree):
    places = "from scrubber.core import model; from policies import units; print(model.__file__, units.__file__)"
    assert run(tree, "-c", places) == (0, f"{tree}/scrubber/core/model.py {tree}/policies/units.py\n")


def test_the_tests_pass_before_anything_is_changed(tree):
    ended, said = judge(tree, "tests/core")
    assert ended == pytest.ExitCode.OK, said


def test_what_is_excused_still_exists():
    assert set(EQUIVALENT) <= {str(mutant) for file in GENERATED_FROM for mutant in generated(file)}


def test_a_mutant_turns_the_tests_red(tree, mutant):
    with mutant.planted(tree):
        ended, said = judge(tree, mutant.tests, mutant.file)
    assert ended in RED, f"{mutant} survived:\n{said}"
    assert re.search("^(FAILED|ERROR) tests/", said, re.MULTILINE), said
