"""The files of a trial. The figures are one file, a line of JSON for each, written when it is known.

A trial that was ended can go on: parts with an end in the file are not done again, unless they failed. Beside the
figures and the page is a folder with everything that was said. It names processes and UUIDs: do not publish it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.nvml_questions import cut
from benchmarks.trial.figures import Measured, Part
from benchmarks.trial.parts import PARTS

_SLUG = re.compile(r"[^a-z0-9]+")
_NOT_ENDED = "it was ended together with the trial"


@dataclass(frozen=True)
class Records:
    """The files of one kind of GPU."""

    path: Path
    tree: str = ""  # the hash of the program that writes them

    @classmethod
    def of(cls, directory: Path, model: str, tree: str = "") -> Records:
        """The files of this model below a directory."""
        return cls(directory / f"{_SLUG.sub('-', model.lower()).strip('-')}.jsonl", tree)

    @property
    def page(self) -> Path:
        """The page for people."""
        return self.path.with_suffix(".md")

    @property
    def evidence(self) -> Path:
        """The folder with what the parts and the service said."""
        return self.path.with_name(f"{self.path.stem}-evidence")

    @property
    def errors(self) -> Path:
        """The stderr of all parts."""
        return self.evidence / "stderr.txt"

    def begin(self, machine: Mapping[str, object]) -> None:
        """Begin a new file, with the facts of the machine."""
        self.evidence.mkdir(parents=True, exist_ok=True)
        self.errors.write_text("")
        self.path.write_bytes(_line({"machine": machine}))

    def machine(self) -> dict[str, object] | None:
        """The facts of the machine; None without a file."""
        return next((row["machine"] for row in self._rows() if "machine" in row), None)

    def begin_part(self, name: str) -> None:
        """What follows is of this part; figures of an earlier try count no more."""
        self.evidence.mkdir(parents=True, exist_ok=True)
        with self.errors.open("a") as errors:
            errors.write(f"\n===== {name}, {_now()} =====\n")
        with self.path.open("ab", buffering=0) as file:
            file.write(_line({"part": name, "begun": _now(), "tree": self.tree}))

    def end_part(self, name: str, seconds: float, why: str) -> None:
        """The part has failed without an end of its own."""
        with self.path.open("ab", buffering=0) as file:
            file.write(_end(name, seconds, why))

    def trees(self) -> dict[str, str]:
        """The hash of the program that each part is of; empty in records that do not say it."""
        return {row["part"]: row.get("tree", "") for row in self._rows() if "begun" in row}

    def begun(self, part: str) -> str:
        """The day on which a part began, as it counts; empty if it did not."""
        days = [str(row["begun"])[:10] for row in self._rows() if "begun" in row and row["part"] == part]
        return days[-1] if days else ""

    def parts(self) -> list[Part]:
        """All parts in their order, each as it last ended."""
        figures: list[Measured] = []
        found: dict[str, Part] = {}
        for row in self._rows():
            if "begun" in row:
                figures = []
                found[row["part"]] = Part(row["part"], 0.0, (), _NOT_ENDED)
            elif "what" in row:
                figures.append(_figure(row))
                found[row["part"]] = Part(row["part"], 0.0, tuple(figures), _NOT_ENDED)
            elif "ended" in row:
                found[row["part"]] = Part(row["part"], row["seconds"], tuple(figures), row["why"], row["not_done"])
        return [found[name] for name in PARTS if name in found]

    def part(self, name: str) -> Part:
        """One of them."""
        return next(part for part in self.parts() if part.name == name)

    def missing(self) -> tuple[str, ...]:
        """The parts that have no end yet, or failed."""
        done = {part.name for part in self.parts() if not part.why}
        return tuple(name for name in PARTS if name not in done)

    def _rows(self) -> Iterator[dict[str, Any]]:
        yield from map(json.loads, self.path.read_text().splitlines() if self.path.exists() else ())


@dataclass(frozen=True)
class Writer:
    """Adds the figures of a part to the file, from the process of the part."""

    file: int
    part: str

    def add(self, figure: Measured) -> None:
        """Add a figure."""
        os.write(self.file, _line({"part": self.part, **asdict(figure)}))

    def end(self, seconds: float, why: str, not_done: str) -> None:
        """The part has ended, passed or not."""
        os.write(self.file, _end(self.part, seconds, why, not_done))


def _figure(row: Mapping[str, Any]) -> Measured:
    predicted, counted = (row.get(name) and tuple(row[name]) for name in ("predicted", "counted"))
    return Measured(row["what"], tuple(row["samples"]), row["unit"], row["note"], predicted, row["because"], counted)


def _end(name: str, seconds: float, why: str, not_done: str = "") -> bytes:
    return _line({"part": name, "ended": _now(), "seconds": round(seconds, 1), "why": why, "not_done": not_done})


def _line(row: Mapping[str, object]) -> bytes:
    return f"{cut(json.dumps(row, default=str))}\n".encode()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
