"""The tests of the core bite: each mutant of its source turns them red.

A mutant is one small change to a *copy* of the tree: a comparison turned round, an ``and`` become ``or``, a word
swapped for its neighbour, a row of a table gone. Planted mutants say what each promise stands on and run in every gate;
of the generated ones the gate runs an even spread, ``make mutate`` all.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from policies import model as policy_words
from scrubber import errors
from scrubber.core import model as words

ROOT = Path(__file__).parents[2]
MUTATED = ("states", "decide", "starting", "grounds", "upkeep", "verdict")
GENERATED_FROM = tuple(f"scrubber/core/{it}.py" for it in MUTATED)
IN_GATE = 15
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

    def apply(self, tree):
        text = (tree / self.file).read_text()
        pieces = text.split(self.old)
        assert len(pieces) > self.nth + 1, f"{self.file} does not read {self.old!r} any more: mend this mutant"
        before, after = self.old.join(pieces[: self.nth + 1]), self.old.join(pieces[self.nth + 1 :])
        mutated = before + self.new + after
        ast.parse(mutated)  # it must be wrong, not broken
        (tree / self.file).write_text(mutated)


STATES, VERDICT = GENERATED_FROM[0], GENERATED_FROM[-1]
ROSTER = "tests/steps/test_roster.py"
PLANTED = [
    Mutant(STATES, "ev.ScrubFailed: State.DIRTY", "ev.ScrubFailed: State.CLEAN"),
    Mutant(STATES, "ev.ScrubInterrupted: State.DIRTY", "ev.ScrubInterrupted: State.CLEAN"),
    Mutant(STATES, "ev.Released: State.DIRTY", "ev.Released: State.CLEAN"),
    Mutant(STATES, "ev.Distrusted: State.UNKNOWN", "ev.Distrusted: State.CLEAN", nth=2),
    Mutant(VERDICT, "is not Outcome.PASSED", "not in (Outcome.PASSED, Outcome.TIMED_OUT)"),
    Mutant(VERDICT, "is not Outcome.PASSED", "is not Outcome.PASSED and step is not Step.VERIFY"),
    Mutant(VERDICT, "(Step.EVICT, Step.CLEAR, Step.VERIFY,", "(Step.EVICT, Step.VERIFY,"),
    Mutant(VERDICT, "Step.RESET, Step.CLEAR, Step.VERIFY,", "Step.RESET, Step.CLEAR,"),
    Mutant("scrubber/devices/simulated/gpu.py", "if faults.skip_clears else wanted", "if wanted else ()", tests=ROSTER),
    Mutant("scrubber/steps/clear.py", "if cleared.mismatch is not None", "if False", tests=ROSTER),
    Mutant("scrubber/steps/verify.py", "if verified.mismatch is not None", "if False", tests=ROSTER),
    Mutant("scrubber/steps/verify.py", "if verified.covered_bytes == 0", "if False", tests=ROSTER),
]

# Mutants that nobody could tell from the original, each with the reason. Where a test could, write the test instead.
EQUIVALENT: dict[str, str] = {
    "upkeep advertise: State.QUARANTINED => State.EXPOSED": "its quarantine is answered above it",
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


@pytest.fixture
def tree(tmp_path):
    """A copy of the sources and of the tests that judge them."""
    rubbish = shutil.ignore_patterns("__pycache__", "house")
    for room in ("scrubber", "policies", "tests"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=rubbish)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(tree, *command):
    """Run Python so that it imports the copy, and leave no bytecode that outlives a change within the second."""
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=tree, env=env, capture_output=True, text=True, check=False, timeout=100
    )


def judge(tree, tests):
    options = ["-x", "-q", "--timeout=30", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return run(tree, "-m", "pytest", *options, tests)


def test_the_copy_is_what_is_judged(tree):
    places = "from scrubber.core import model; from policies import units; print(model.__file__, units.__file__)"
    assert run(tree, "-c", places).stdout.split() == [f"{tree}/scrubber/core/model.py", f"{tree}/policies/units.py"]


def test_the_tests_pass_before_anything_is_changed(tree):
    verdict = judge(tree, "tests/core")
    assert verdict.returncode == pytest.ExitCode.OK, verdict.stdout


def test_what_is_excused_still_exists():
    assert set(EQUIVALENT) <= {str(mutant) for file in GENERATED_FROM for mutant in generated(file)}


def test_a_mutant_turns_the_tests_red(tree, mutant):
    mutant.apply(tree)
    verdict = judge(tree, mutant.tests)
    assert verdict.returncode in RED, f"{mutant} survived:\n{verdict.stdout}"
    assert re.search("^(FAILED|ERROR) tests/", verdict.stdout, re.MULTILINE), verdict.stdout
