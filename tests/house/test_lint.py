"""The linters are tests: ``make test`` is the whole gate, and this is the one place that says how each is called."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

LINTERS = {
    "ruff": ["ruff", "check", "--quiet", "."],
    "format": ["ruff", "format", "--check", "--quiet", "."],
    "mypy": ["mypy", "--no-error-summary"],
    "imports": ["lint-imports", "--no-cache", "--no-logo"],
}


@pytest.mark.parametrize("command", LINTERS.values(), ids=LINTERS)
def test_the_tree_passes(command):
    run = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{run.stdout}{run.stderr}", pytrace=False)
