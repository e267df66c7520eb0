"""House rules that no linter knows: charters, late imports, and a reason beside every exemption."""

import ast
import re

import pytest

from tests.house.sources import FILES, HOUSES, ROOT, WRITTEN, modules, place

LAZY = "autoclave/cli/"  # the verbs are loaded when they are called
EXTRAS = (
    "scrubber/assembly.py",  # the NVIDIA backend: a service with simulated GPUs does not wait for its modules
    "scrubber/devices/roster.py",  # the same in a worker
    "scrubber/cuda/",  # CuPy, which a node may lack and the service never has, is loaded when a GPU is opened
    "plugin/cluster/reporter.py",  # the API server's client, where there is one to speak to
    "plugin/dra/driver_process.py",  # the same: who lacks it gets a line that says what to install
    "plugin/vendor/cdi_edits.py",  # YAML, which that client brings; a driver of our own reads none
)

SHARED = {"config"}  # basenames of several files: what a reader looks for in each of the programs

REGISTRY = re.compile(r"pypi\.org|pythonhosted\.org|pypi/+simple|file:///\w")
UNOWNED = re.compile(r"(?:github\.com|ghcr\.io|docker\.io|quay\.io)/autoclave")  # anybody may register it
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:home|root|Users|work|farm)/")
RULE = re.compile(r'"[A-Z]{1,4}[0-9]{0,4}"|ignore_(?:errors|missing)')


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


def test_facts_are_made_in_one_place():
    """Elsewhere, somebody would have to invent the answers that were not asked for."""
    calls = [
        place(path)
        for path, tree in modules(*HOUSES)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "Facts"
    ]
    assert calls == ["scrubber/observe/observed_since.py"]


def test_no_module_is_called_utils():
    drawers = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    assert [place(path) for path in WRITTEN if {path.stem, *path.parent.relative_to(ROOT).parts} & drawers] == []


def test_one_basename_stands_on_one_file():
    """A verb's file has the name of the verb, whatever else has that name."""
    products = tuple(f"{it}/" for it in HOUSES if it not in ("demo", "dashboards"))
    stems = [path.stem for path in WRITTEN if place(path).startswith(products) and "verbs" not in path.parts]
    assert {it for it in stems if stems.count(it) > 1 and not it.startswith("__")} == SHARED


def test_every_exemption_in_pyproject_has_its_reason():
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    rules = [line for line in lines if RULE.search(line) and not line.startswith("select")]
    assert rules
    assert [line for line in rules if not re.search(r"# \S", line)] == []


def imported(tree):
    """The full name of each module, and of each name in one, that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def of_tests(tree):
    """Those of them that stand in a file of tests."""
    return [name for name in imported(tree) if re.match(r"tests\.(\w+\.)*test_", name)]


def test_no_test_imports_another_test_file():
    assert [f"{place(path)}: {name}" for path, tree in modules("tests") for name in of_tests(tree)] == []


@pytest.mark.parametrize(
    "line",
    ["import tests.core.test_states", "from tests.core.test_states import X", "from tests.core import test_states"],
)
def test_an_import_of_a_test_file_is_found(line):
    assert of_tests(ast.parse(line))


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


CUTS = {"split", "rsplit", "partition", "rpartition", "removeprefix", "removesuffix", "startswith", "endswith"}
SENTENCE = re.compile(r"; |: $|^cannot ")  # what joins the parts of our sentences, and how most of them begin
OTHERS = {"scrubber/devices/nvidia/host.py"}  # lines of the driver's file


def cut_apart(tree):
    """The line of each call that looks for a part of a sentence."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CUTS:
            texts = [it.value for arg in node.args for it in ast.walk(arg) if isinstance(it, ast.Constant)]
            if any(isinstance(text, str) and SENTENCE.search(text) for text in texts):
                yield node.lineno


def test_no_program_cuts_a_sentence_apart():
    rooms = ("autoclave", "plugin", "scrubber", "policies", "ground")
    found = [
        place(path, line) for path, tree in modules(*rooms) if place(path) not in OTHERS for line in cut_apart(tree)
    ]
    assert found == [], "give the value a field of its own beside the sentence"


@pytest.mark.parametrize(
    "line",
    ['why.partition("; ")', 'x.removeprefix(f"cannot read {y}: ")', 'x.startswith(("a", "cannot scrub "))'],
)
def test_a_sentence_that_is_cut_apart_is_found(line):
    assert [*cut_apart(ast.parse(line))] == [1]


REFUSALS = {"Refused", "NotReady"}  # ``Refuse`` and ``Wait`` cannot be made without remedies


def without_remedy(tree):
    """The line of each refusal that says to nobody what to do."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") in REFUSALS]
    return [call.lineno for call in calls if len(call.args) < 3 and not isinstance(call.args[-1], ast.Starred)]


def test_each_refusal_says_who_can_help():
    rooms = ("autoclave", "plugin", "scrubber", "scrub_api", "ground")
    assert [place(path, line) for path, tree in modules(*rooms) for line in without_remedy(tree)] == []


def test_a_refusal_without_remedy_is_found():
    assert without_remedy(ast.parse("Refused(Reason.SICK, 'it is sick', device=device)")) == [1]
    assert without_remedy(ast.parse("NotReady(Reason.SICK, *TOO_LATE)")) == []
