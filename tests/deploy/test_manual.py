"""The manual says what ``--help`` says."""

import subprocess
import sys
from pathlib import Path

from autoclave.cli import VERBS
from deploy import manual

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_committed_manual_is_the_one_that_is_made_now():
    # In a process of its own: click makes a command's help option once for each process.
    made = subprocess.run([sys.executable, "-m", "deploy.manual"], capture_output=True, text=True, check=True)
    assert PAGE.read_text() == made.stdout, "write it anew: make docs"


def test_every_verb_and_program_is_in_the_manual():
    text = manual.text()
    assert [verb for verb in VERBS if f"\n  {verb} " not in text] == []
    assert [program for program in manual.PROGRAMS if f"## autoclave {program}\n" not in text] == []
