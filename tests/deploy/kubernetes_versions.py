"""Which feature gates a version of Kubernetes has on by default: the table of docs/dra.md, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs/dra.md"
_HEAD = re.compile(r"\| what \| feature gate \|((?: 1\.\d+ \|)+) without the gate \|\n[|-]+\n((?:\|.*\n)+)")
_WORDS = {"on": True, "-": False}


def _read() -> Iterator[tuple[str, dict[str, bool]]]:
    found = _HEAD.search(_PAGE.read_text(encoding="utf-8"))
    assert found is not None, "docs/dra.md has no table of feature gates"
    versions = [cell.strip() for cell in found[1].strip("|").split("|")]
    for line in found[2].splitlines():
        _what, gate, *cells, _without = [cell.strip() for cell in line.strip("|").split("|")]
        yield gate.strip("`"), {it: _WORDS[cell] for it, cell in zip(versions, cells, strict=True)}


GATES: dict[str, dict[str, bool]] = dict(_read())  # by gate, by version
VERSIONS = tuple(next(iter(GATES.values())))
FIRST, NEWEST = VERSIONS[0], VERSIONS[-1]
