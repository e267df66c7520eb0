"""The manual says what ``--help`` says."""

from pathlib import Path

from scrubber.cli import VERBS, manual

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_committed_manual_is_the_one_that_is_made_now():
    assert PAGE.read_text() == manual.text(), "write it anew: python -m scrubber.cli.manual > docs/cli.md"


def test_every_verb_is_in_the_manual():
    text = manual.text()
    assert [verb for verb in VERBS if f"### autoclave {verb}\n" not in text] == []
    assert "#### autoclave simulate zombie\n" in text
