"""The files of a result: JSON, a page, a picture of the grid of cells, and a statement to sign. UUIDs are cut short."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from containers import pages
from ground import private_files
from ground.quantities import quantity
from remnant.judge import Cell, Verdict, cells, size
from remnant.round_result import Ending, Medium, Result
from scrubber import __version__

FORMAT = "autoclave-remnant/1"
SHOWN = 8  # characters of a UUID
_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
TESTS = {  # of in-toto, from the worst
    "FAILED": ("failedTests", {Verdict.REMNANT, Verdict.NO_ANSWER}),
    "WARNED": ("warnedTests", {Verdict.HELD, Verdict.NOT_ZERO}),
    "PASSED": ("passedTests", {Verdict.NONE}),
}
WORDS = {
    Ending.EXIT: "it exits",
    Ending.KILL: "it is killed (SIGKILL)",
    Ending.DELETE: "its pod is deleted",
    Ending.FORCE_DELETE: "its pod is deleted by force",
    Ending.ABORT: "a CUDA kernel of it traps",
    Ending.STAYS: "a process of it is left behind",
}
COLOURS = {
    Verdict.NONE: "#2e7d32",
    Verdict.HELD: "#ef6c00",
    Verdict.NOT_ZERO: "#f9a825",
    Verdict.NO_ANSWER: "#757575",
    Verdict.REMNANT: "#c62828",
}
_METHOD = (
    "A first container fills these media with words derived from a secret key. Then it ends, or a process of it is left"
    " behind. The next container looks for the words before it writes anything."
    " A result says something about this GPU and this driver only."
)
_LEGEND = (
    "**Expected** was written down before the run: NVIDIA's driver clears memory that is freed, by its published"
    " source, so no word is expected there without any scrub. **No remnant** is no proof that none is ever there:"
    " it says how often at most, with a confidence of 95 %. **Held** means that the next container does not get all"
    " memory, because the first one still has a part. Of **host-memory** only a small part is filled, and the next"
    " container may get other pages: no finding there says less than in memory of the GPU. In each round the first"
    " container also looks for its own words, and the next one for words that nobody wrote; if either fails, the cell"
    " is **no answer**."
)
_HEADERS = (
    "how the first container ends",
    "medium",
    "expected",
    "found",
    "rounds",
    "read",
    "not zero",
    "recognised",
    "",
)


def write(directory: Path, result: Result) -> tuple[Path, ...]:
    """Write all files; returns their paths."""
    grid = cells(result)
    whole = _cut(document(result, grid))
    texts = {
        "result.json": whole,
        "report.md": _cut(page(result, grid)),
        "report.svg": picture(grid),
        "statement.json": statement(whole, result, grid),
    }
    private_files.write_for_others(directory, texts)
    return tuple(directory / name for name in texts)


def document(result: Result, grid: Sequence[Cell]) -> str:
    """Everything, for programs. Sizes are in bytes, times in seconds."""
    whole = {
        "format": FORMAT,
        "tool": f"autoclave {__version__}",
        **_plain(dataclasses.asdict(result)),
        "cells": [_plain(dataclasses.asdict(cell)) | {"as_expected": cell.as_expected} for cell in grid],
    }
    whole["gpu"]["uuid"] = whole["gpu"]["uuid"][:SHOWN]
    return "{\n" + ",\n".join(f'"{name}": {_lines(value)}' for name, value in whole.items()) + "\n}\n"


def statement(whole: str, result: Result, grid: Sequence[Cell]) -> str:
    """An in-toto statement of ``result.json``: which tests passed. Held, or not zero, is a warning."""
    named = {
        name: [f"{cell.medium.value} after {cell.ending.value}" for cell in grid if cell.verdict in verdicts]
        for name, verdicts in TESTS.values()
    }
    if result.ended_early:
        named["failedTests"].append("all rounds are done")
    worst = next(outcome for outcome, (name, _) in TESTS.items() if named[name])
    facts = json.loads(whole)
    configuration = {name: facts[name] for name in ("tool", "on", "began", "gpu", "planned", "beside")}
    configuration["rounds"] = len(result.rounds)
    content = base64.b64encode(json.dumps(configuration).encode()).decode()
    document = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "result.json", "digest": {"sha256": hashlib.sha256(whole.encode()).hexdigest()}}],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {
            "result": worst,
            "configuration": [{"name": "run", "mediaType": "application/json", "content": content}],
            **named,
        },
    }
    return json.dumps(document, indent=1) + "\n"


def page(result: Result, grid: Sequence[Cell]) -> str:
    """One page with one table."""
    gpu = result.gpu
    taken = (
        f"Taken {result.began} with `autoclave remnant run --on {result.on}` (autoclave {__version__}), on"
        f" {gpu.uuid[:SHOWN]}, {size(gpu.memory)}, driver {pages.words(gpu.driver)}"
        f" with {'open' if gpu.open_modules else 'closed'} kernel modules, ECC {_switch(gpu.ecc)},"
        f" persistence mode {_switch(gpu.persistence)}."
        f" {len(result.rounds)} of {quantity(result.planned, 'round')} were done. {_METHOD}"
        + (
            f" These programs might have the GPU open: {pages.words(', '.join(result.beside))}."
            if result.beside
            else ""
        )
    )
    table = pages.table(_HEADERS, [_row(cell) for cell in grid])
    points = "\n".join(pages.wrapped(f"* {pages.words(line)}", "  ") for line in summary(result, grid))
    title = f"# What the next container sees: {pages.words(gpu.model)}"
    return "\n\n".join((title, pages.wrapped(taken), points, table, pages.wrapped(_LEGEND))) + "\n"


def summary(result: Result, grid: Sequence[Cell]) -> list[str]:
    """The result in a few sentences, the worst first."""
    lines = [_headline({cell.verdict for cell in grid})]
    lines += [
        f"{cell.verdict.value}: {cell.medium.value}, when {WORDS[cell.ending]}: {cell.why}"
        for verdict in Verdict
        for cell in grid
        if cell.verdict is verdict is not Verdict.NONE
    ]
    lines.append(
        f"{Verdict.NONE.value}: {sum(cell.verdict is Verdict.NONE for cell in grid)} of {quantity(len(grid), 'cell')}"
    )
    unexpected = [cell for cell in grid if not cell.as_expected]
    lines.append(f"not as expected: {len(unexpected)} of {quantity(len(grid), 'cell')}")
    if result.ended_early:
        lines.append(f"ended early: {result.ended_early}")
    return lines


def picture(grid: Sequence[Cell]) -> str:
    """A grid: media across, endings down."""
    endings = list(dict.fromkeys(cell.ending for cell in grid))
    left, wide, high, top = 210, 150, 34, 40
    parts = [
        f'<text x="{left + wide * column + wide / 2}" y="{top - 12}" text-anchor="middle">{medium.value}</text>'
        for column, medium in enumerate(Medium)
    ]
    for row, ending in enumerate(endings):
        y = top + high * row
        parts.append(f'<text x="{left - 10}" y="{y + 22}" text-anchor="end">{escape(WORDS[ending])}</text>')
        for cell in grid:
            if cell.ending is ending:
                x = left + wide * list(Medium).index(cell.medium)
                parts.append(
                    f'<rect x="{x + 2}" y="{y + 2}" width="{wide - 4}" height="{high - 4}" rx="4"'
                    f' fill="{COLOURS[cell.verdict]}"/><text x="{x + wide / 2}" y="{y + 22}" text-anchor="middle"'
                    f' fill="white">{cell.verdict.value}</text>'
                )
    size = f'width="{left + wide * len(Medium) + 10}" height="{top + high * len(endings) + 10}"'
    style = 'font-family="sans-serif" font-size="13"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{chr(10).join(parts)}\n</svg>\n'


def _headline(verdicts: set[Verdict]) -> str:
    if Verdict.REMNANT in verdicts:
        return "The next container found words of the first one."
    if Verdict.NO_ANSWER in verdicts:
        return "The next container found no word of the first one, and a part of the test gives no answer."
    return "The next container found no word of the first one."


def _cut(text: str) -> str:
    """UUIDs to their first characters, wherever they stand."""
    return _UUID.sub(lambda found: found[0][:SHOWN], text)


def _row(cell: Cell) -> tuple[str, ...]:
    return (
        WORDS[cell.ending],
        cell.medium.value,
        cell.expected.value,
        cell.verdict.value if cell.as_expected else f"**{cell.verdict.value}**",
        str(cell.rounds),
        size(cell.read),
        "-" if cell.not_zero is None else size(cell.not_zero),
        size(cell.recognised),
        pages.words(cell.why)
        + (f"; filled through cuMemCreate: {size(cell.mapped)}" if cell.medium is Medium.MEMORY else ""),
    )


def _lines(value: object) -> str:
    """A line for each item of a list."""
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"


def _plain(value: Any) -> Any:  # noqa: ANN401 -- any value of a document
    """Enums by their words, keys too."""
    if isinstance(value, dict):
        return {_plain(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.value if isinstance(value, Medium | Ending | Verdict) else value


def _switch(value: bool | None) -> str:  # noqa: FBT001 -- what is said of it
    return "unknown" if value is None else "on" if value else "off"
