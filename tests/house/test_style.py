"""House rules that no linter knows: charters, late imports, and a reason beside every exemption."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from pathspec import GitIgnoreSpec

ROOT = Path(__file__).parents[2]
HOUSES = ("autoclave", "demo", "scrubber", "plugin", "policies", "ground", "dashboards")
LAZY = "autoclave/cli/"  # the verbs are loaded when they are called
EXTRAS = (
    "autoclave/doctor/gathering.py",  # the API server's client, for a check that few ask for
    "scrubber/app.py",  # the NVIDIA backend: a service with simulated GPUs does not wait for its modules
    "scrubber/devices/roster.py",  # the same in a worker
    "scrubber/cuda/",  # CuPy, which a node may lack and the service never has, is loaded when a GPU is opened
    "plugin/cluster/reporter.py",  # the API server's client, where there is one to speak to
    "plugin/dra/app.py",  # the same: who lacks it gets a line that says what to install
    "plugin/vendor/cdi.py",  # YAML, which that client brings; a driver of our own reads none
)

IGNORED = GitIgnoreSpec.from_lines([*(ROOT / ".gitignore").read_text().splitlines(), ".git"])
FILES = [
    path
    for top in sorted(ROOT.iterdir())
    if not IGNORED.match_file(top.name + "/" * top.is_dir())
    for path in ([top] if top.is_file() else sorted(top.rglob("*")))
    if path.is_file() and not IGNORED.match_file(path.relative_to(ROOT))
]
WRITTEN = [path for path in FILES if path.suffix == ".py" and "_pb2" not in path.name]  # by a person

REGISTRY = re.compile(r"pypi\.org|pythonhosted\.org|pypi/+simple|file:///\w")
UNOWNED = re.compile(r"(?:github\.com|ghcr\.io|docker\.io|quay\.io)/autoclave")  # anybody may register it
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:home|root|Users|work|farm)/")
RULE = re.compile(r'"[A-Z]{1,4}[0-9]{0,4}"|ignore_(?:errors|missing)')


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


def test_the_walk_sees_the_packages_and_no_ignored_file():
    names = {place(path) for path in FILES}
    assert {"pyproject.toml", "ground/errors.py", "tests/house/test_style.py"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/")) or "__pycache__" in name]


def test_every_module_opens_with_its_sentence():
    assert [place(path) for path, tree in modules() if not ast.get_docstring(tree)] == []


def test_only_named_modules_import_late():
    late = [
        place(path)
        for path, tree in modules(*HOUSES)
        if not place(path).startswith((LAZY, *EXTRAS))
        and {"import_module", "__import__"}
        & {getattr(node, "attr", getattr(node, "id", None)) for node in ast.walk(tree)}
    ]
    assert late == []


def test_a_package_has_a_docstring_and_no_code():
    busy = []
    for path, tree in modules(*HOUSES):
        if path.name != "__init__.py" or place(path).startswith(LAZY):
            continue
        busy += [
            place(path, node.lineno)
            for node in tree.body[1:]
            if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__")
        ]
    assert busy == []


def test_no_module_is_called_utils():
    drawers = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    assert [place(path) for path in WRITTEN if {path.stem, *path.parent.relative_to(ROOT).parts} & drawers] == []


def test_every_exemption_in_pyproject_has_its_reason():
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    rules = [line for line in lines if RULE.search(line) and not line.startswith("select")]
    assert rules
    assert [line for line in rules if not re.search(r"# \S", line)] == []


@pytest.mark.parametrize("mark", ["noqa", "type: ignore", "pragma"])
def test_every_exemption_in_the_code_has_its_reason(mark):
    bare = re.compile(rf"# {mark}(?:: ?[A-Z]+[0-9]+(?:, ?[A-Z]+[0-9]+)*|\[[a-z, -]+\])?$")
    assert [
        place(path, number)
        for path in WRITTEN
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if bare.search(line)
    ] == []


@pytest.mark.parametrize("pattern", [REGISTRY, MACHINE_PATH, UNOWNED], ids=["registry", "machine-path", "unowned"])
def test_no_text_names_its_machine_or_an_unowned_organisation(pattern):
    found = []
    for path in FILES:
        text = path.read_bytes().decode(errors="replace")
        found += [f"{place(path)}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []
