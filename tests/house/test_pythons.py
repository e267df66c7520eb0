"""``make test`` takes the newest supported Python that starts here; the continuous integration also the oldest one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEWEST, MIDDLE, OLDEST = "python3.13", "python3.12", "python3.11"
STARTS = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
SHIM = "#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n"  # a Python that is not chosen
INSTALLED = ("strace", "gcc", "promtool", "actionlint")  # or the continuous integration would fetch them


class Machine:
    """What this machine has on its search path, before Debian's own programs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, program: str, text: str = STARTS) -> None:
        """One more program."""
        path = self._folder / program
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *command: str | Path) -> list[str]:
        """The words that a command prints. A test of a test is no part of a make around it."""
        outer = {name: word for name, word in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTHON"))}
        env = outer | {"PATH": f"{self._folder}:{os.defpath}"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        words: list[str] = done.stdout.split()
        return words


@pytest.fixture
def machine(tmp_path):
    (folder := tmp_path / "bin").mkdir()
    machine = Machine(folder)
    for name in (NEWEST, MIDDLE, OLDEST):
        machine.has(name, SHIM)
    return machine


def test_the_pythons_are_those_that_start_newest_first(machine):
    machine.has(OLDEST)
    machine.has(MIDDLE)
    assert machine.run("make", "-s", "pythons") == [MIDDLE, OLDEST]


def test_a_new_environment_has_the_newest_python(machine):
    machine.has(OLDEST)
    machine.has(NEWEST)
    assert f"{NEWEST} -m venv --clear .venv" in " ".join(machine.run("make", "-nB", ".venv/.ready"))


def test_without_a_supported_name_python3_is_taken(machine):
    machine.has("python3")
    assert machine.run("make", "-s", "pythons") == []
    assert " python3 -m venv --clear .venv" in " ".join(machine.run("make", "-nB", ".venv/.ready"))


def runs(machine: Machine, tmp_path: Path) -> list[str]:
    """How the continuous integration, in a checkout of its own, calls make for the checks."""
    for name in INSTALLED:
        machine.has(name)
    machine.has(
        "make",
        f'#!/bin/sh\ncase "$*" in test*|check*) echo "$*" ;; *) exec {shutil.which("make")} -C {ROOT} "$@" ;; esac\n',
    )
    (script := tmp_path / ".ci/run").parent.mkdir()
    shutil.copy(ROOT / ".ci/run", script)
    return re.findall(r"(?:test|check) PYTHON=(\S+)", " ".join(machine.run(script)))


def test_the_integration_takes_the_newest_and_the_oldest(machine, tmp_path):
    for name in (NEWEST, MIDDLE, OLDEST):
        machine.has(name)
    assert runs(machine, tmp_path) == [NEWEST, OLDEST]


def test_the_integration_takes_a_lone_python_once(machine, tmp_path):
    machine.has(MIDDLE)
    assert runs(machine, tmp_path) == [MIDDLE]
