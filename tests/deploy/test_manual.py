"""The manual says what ``--help`` says."""

import subprocess
import sys
from pathlib import Path

from autoclave.cli import SERVERS, VERBS
from deploy import manual

PAGE = Path(__file__).parents[2] / "docs/cli.md"


def test_the_committed_manual_is_the_one_that_is_made_now(tmp_path):
    # In a process of its own: click makes a command's help option once for each process.
    made = tmp_path / "cli.md"
    made.write_text(PAGE.read_text().replace("Usage: autoclave", "Usage: another"))
    subprocess.run([sys.executable, "-m", "deploy.manual", made], check=True)
    assert PAGE.read_text() == made.read_text(), "write it anew: make docs"


def test_every_verb_and_program_is_in_the_manual():
    text, man = manual.text(), manual.man()
    assert [verb for verb in VERBS if f"\n  {verb} " not in text or f"\n.SH autoclave {verb}\n" not in man] == []
    requests = {line.split()[0] for line in man.splitlines() if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".PP", ".TP"}, "man would take text for a request"
    assert [program for program in manual.PROGRAMS if f"## autoclave {program}\n" not in text] == []


def test_every_flag_of_a_program_has_somebody_who_gives_it():
    """A flag that nobody has a reason for is not added."""
    programs = [verb for verb in manual.commands() if verb.info_name in SERVERS]
    assert [verb.info_name for verb in programs] == list(manual.PROGRAMS)
    assert list(manual.flags(programs)) == list(manual.USERS)
