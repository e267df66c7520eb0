"""The grade of a reader says what the reader has found, and no line counts that was not answered."""

from __future__ import annotations

from pathlib import Path

from benchmarks import reader
from benchmarks.house import ROOT

LINES = [(Path("scrubber/core/proof.py"), "a = proof"), (Path("ground/log.py"), "b = log"), (Path("a/b.py"), "c = b")]


def test_a_hit_needs_the_folder_and_then_the_file() -> None:
    answers = "1 scrubber/core proof.py\n2 ground proof\nno answer\n"
    assert reader.hits(LINES, answers) == (2, 1, ["3 a/b.py (not ): c = b"])
    assert reader.hits(LINES, "2 scrubber/core log\n")[:2] == (0, 0)


def test_a_drawn_line_stands_where_the_key_says() -> None:
    lines = reader.drawn(ROOT, ["ground"], 40, 7)
    assert lines == reader.drawn(ROOT, ["ground"], 40, 7)
    for place, line in lines:
        assert line in (ROOT / place).read_text()
        assert not line.startswith(("import ", "from ", '"""'))
