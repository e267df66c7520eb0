"""The manual and the man pages say what ``--help`` says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autoclave.cli import VERBS
from autoclave.cli.verbs import manual

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_committed_manual_is_the_one_that_is_made_now():
    # In a process of its own: click makes a command's help option once for each process.
    made = subprocess.run(
        [sys.executable, "-m", "autoclave.cli.verbs.manual"], capture_output=True, text=True, check=True
    )
    assert PAGE.read_text() == made.stdout, "write it anew: python -m autoclave.cli.verbs.manual > docs/cli.md"


def test_every_verb_is_in_the_manual():
    text = manual.text()
    assert [verb for verb in VERBS if f"### autoclave {verb}\n" not in text] == []
    assert "#### autoclave simulate zombie\n" in text


@pytest.fixture
def pages(autoclave, tmp_path):
    run = autoclave("manual", tmp_path / "man1")
    assert run.exit_code == 0, run.output
    return sorted((tmp_path / "man1").iterdir())


def test_each_verb_has_a_man_page(pages):
    assert {page.name for page in pages} == {"autoclave.1", *(f"autoclave-{verb}.1" for verb in VERBS)}


def test_a_man_page_has_flags_commands_and_exit_codes(pages):
    text = next(page for page in pages if page.name == "autoclave-policy.1").read_text().replace("\\-", "-")
    for words in (
        "\\&autoclave policy check \\&[OPTIONS] FILE...",
        "--run-dir DIRECTORY",
        "EXIT STATUS",
        "3 service not",
    ):
        assert words in text


@pytest.mark.parametrize("program", [["groff", "-man", "-Tascii", "-P-cbou", "-ww"], ["man", "--warnings", "-l"]])
def test_the_man_pages_are_rendered_without_a_warning(pages, program):
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not installed")
    for page in pages:
        environment = {**os.environ, "LC_ALL": "C"}
        run = subprocess.run([*program, page], env=environment, capture_output=True, text=True, check=False)
        assert (run.returncode, run.stderr) == (0, ""), page
        assert "EXIT STATUS" in run.stdout


def test_a_directory_that_cannot_be_written_is_a_usage_error(autoclave):
    run = autoclave("manual", "/proc/nowhere")
    assert run.exit_code == 2
    assert run.stderr.startswith("autoclave: cannot write the man pages into /proc/nowhere: ")
