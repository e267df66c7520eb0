"""The linters are tests: ``make test`` runs all checks, and this is the one place that says how each is called."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
WORKFLOWS = ROOT / ".github" / "workflows"

LINTERS = {
    "ruff": ["ruff", "check", "--quiet", "."],
    "format": ["ruff", "format", "--check", "--quiet", "."],
    "mypy": ["mypy", "--no-error-summary"],
    "imports": ["lint-imports", "--no-cache", "--no-logo"],
    "zizmor": ["zizmor", "--offline", "--quiet", "--persona", "pedantic", ".github"],
}


@pytest.mark.parametrize("command", LINTERS.values(), ids=LINTERS)
def test_the_tree_passes(command):
    run = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{run.stdout}{run.stderr}", pytrace=False)


def test_the_scripts_are_plain_shell():
    if not (BIN / "shellcheck").exists():
        pytest.skip("shellcheck has no wheel for this machine")
    scripts = [*(ROOT / "deploy").rglob("*.sh"), *(ROOT / "deploy/kubectl").iterdir()]
    command: list[str | Path] = [BIN / "shellcheck", "--shell=sh", *scripts]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stdout + run.stderr == ""


def test_actionlint_accepts_the_workflows():
    path = os.pathsep.join([str(ROOT / "build" / "tools"), str(BIN), os.environ["PATH"]])  # BIN has its shellcheck
    program = shutil.which("actionlint", path=path)
    if program is None:
        pytest.skip("actionlint is not here: make actionlint builds it, with Go")
    command: list[str | Path] = [program, "-no-color", *sorted(WORKFLOWS.iterdir())]
    run = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_each_action_is_pinned_by_a_commit_and_its_release():
    lines = [
        f"{path.name}: {line.strip()}"
        for path in sorted(WORKFLOWS.iterdir())
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert lines
    assert [line for line in lines if not re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


def test_no_step_of_a_workflow_runs_the_words_of_others():
    """An expression in `run` is text of the script, and ARGS of make is read by a shell once more."""
    fixed = {"CUDA", "GITHUB_REPOSITORY", "GITHUB_SERVER_URL", "MACHINE", "PATH"}  # a tag, a branch and a title are not
    scripts = [
        (path.name, step["run"])
        for path in sorted(WORKFLOWS.iterdir())
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    assert scripts
    assert [(name, run) for name, run in scripts if "${{" in run] == []
    twice = [(name, run) for name, run in scripts if re.search(r"\bARGS=|\beval\b|sh -c", run)]
    assert [(name, run) for name, run in twice if not set(re.findall(r"\$\{?(\w+)", run)) <= fixed] == []
