"""The manual says what ``--help`` says."""

import subprocess
import sys
from pathlib import Path

import pytest

from autoclave.cli import VERBS
from deploy import manual

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "form"), [("cli.md", []), ("autoclave.1", ["man"])])
def test_the_committed_manual_is_the_one_that_is_made_now(page, form):
    # In a process of its own: click makes a command's help option once for each process.
    made = subprocess.run([sys.executable, "-m", "deploy.manual", *form], capture_output=True, text=True, check=True)
    assert (DOCS / page).read_text() == made.stdout, "write it anew: make docs"


def test_every_verb_and_program_is_in_the_manual():
    text, man = manual.text(), manual.man()
    assert [verb for verb in VERBS if f"\n  {verb} " not in text or f"\n.SH autoclave {verb}\n" not in man] == []
    requests = {line.split()[0] for line in man.splitlines() if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".PP", ".TP"}, "man would take text for a request"
    assert [program for program in manual.PROGRAMS if f"## autoclave {program}\n" not in text] == []
