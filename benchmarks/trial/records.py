"""The file of a trial: one line of JSON for each figure, and one for each part that has ended.

A trial that was ended can go on: parts with an end in the file are not done again, unless they failed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.nvml import cut
from benchmarks.trial.figures import Measured
from benchmarks.trial.parts import PARTS, Part

_SLUG = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class Records:
    """The file of one kind of GPU."""

    path: Path

    @classmethod
    def of(cls, directory: Path, model: str) -> Records:
        """The file of this model below a directory."""
        return cls(directory / f"{_SLUG.sub('-', model.lower()).strip('-')}.jsonl")

    @property
    def page(self) -> Path:
        """The page for people beside it."""
        return self.path.with_suffix(".md")

    def begin(self, machine: Mapping[str, object]) -> None:
        """Begin a new file, with the facts of the machine."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(_line({"machine": machine}))

    def machine(self) -> dict[str, object] | None:
        """The facts of the machine; None without a file."""
        return next((row["machine"] for row in self._rows() if "machine" in row), None)

    def add(self, part: Part) -> None:
        """Add the figures of a part, then its end."""
        end = {"seconds": round(part.seconds, 1), "why": part.why, "not_done": part.not_done}
        taken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        lines = [_line({"part": part.name, **asdict(figure)}) for figure in part.figures]
        text = self._text() + "".join([*lines, _line({"part": part.name, "ended": taken, **end})])
        beside = self.path.with_suffix(".new")
        beside.write_text(text)
        beside.replace(self.path)

    def parts(self) -> list[Part]:
        """All parts in their order, each as it last ended."""
        figures: list[Measured] = []
        found: dict[str, Part] = {}
        for row in self._rows():
            if "what" in row:
                figures.append(Measured(row["what"], tuple(row["samples"]), row["unit"], row["note"]))
            elif "ended" in row:
                found[row["part"]] = Part(row["part"], row["seconds"], tuple(figures), row["why"], row["not_done"])
                figures = []
        return [found[name] for name in PARTS if name in found]

    def missing(self) -> tuple[str, ...]:
        """The parts that have no end yet, or failed."""
        done = {part.name for part in self.parts() if not part.why}
        return tuple(name for name in PARTS if name not in done)

    def _rows(self) -> Iterator[dict[str, Any]]:
        yield from map(json.loads, self._text().splitlines())

    def _text(self) -> str:
        return self.path.read_text() if self.path.exists() else ""


def _line(row: Mapping[str, object]) -> str:
    return cut(json.dumps(row, default=str)) + "\n"
