"""The vocabulary of the logs: docs/logs.md lists the warnings and errors of both houses."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ground import logged_calls
from tests.house.sources import modules, place

PAGE = (Path(__file__).parents[2] / "docs" / "logs.md").read_text()
SPEAKS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
LOGGERS = {"logger", "log"}
NO_PART = ("autoclave/cli/", "demo/standins/")
OWN_WORDS = "(…)"  # an event that is not known beforehand: what a driver said, what a row of the ledger tells
CHOSEN = "…"  # a level that is not known beforehand
DOOR_LEVELS = {"granted": "info", "refused": "warning", "cancelled": "warning", "fault": "error"}
SAID_BY_DOORS = {  # where a door has no words of its own
    name: ast.Constant(word.default)
    for name, word in inspect.signature(logged_calls.logged).parameters.items()
    if name in DOOR_LEVELS and word.default is not word.empty
}
NORMAL = {"debug", "info"}  # normal operation: the page leaves these lines out


class Line(NamedTuple):
    """Something that a room may say."""

    room: str
    event: str
    level: str


def constants(tree: ast.Module) -> dict[str, str]:
    """The words that a module has given a name."""
    given = [(node.targets[0], node.value) for node in tree.body if isinstance(node, ast.Assign)]
    return {ast.unparse(name): str(it.value) for name, it in given if isinstance(it, ast.Constant)}


def room(tree: ast.Module) -> str:
    """What its logger calls itself."""
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call) and ast.unparse(value.func) in ("log.get", "structlog.get_logger"):
            given = [*value.args, *(word.value for word in value.keywords)]
            return str(ast.literal_eval(given[0]))
    return ""


def events(node: ast.expr, names: dict[str, str], scope: ast.AST) -> set[str]:
    """What the first argument may be."""
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.Name(id=name) if name in names:
            return {names[name]}
        case ast.IfExp(body=one, orelse=other):
            return events(one, names, scope) | events(other, names, scope)
        case ast.Name(id=name):  # chosen a few lines before
            given = [it for it in ast.walk(scope) if isinstance(it, ast.Assign) and ast.unparse(it.targets[0]) == name]
            return {text for it in given for text in events(it.value, names, scope)} or {OWN_WORDS}
        case _:
            return {OWN_WORDS}


def said() -> Iterator[tuple[str, Line]]:
    """Every line that the code of both houses writes, and where."""
    for path, tree in modules("scrubber", "plugin", "ground"):
        if place(path).startswith(NO_PART):
            continue
        names = constants(tree)
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for call in ast.walk(function):
                if not isinstance(call, ast.Call) or not call.args:
                    continue
                yield from ((place(path, call.lineno), line) for line in lines(call, names, function, room(tree)))


def lines(call: ast.Call, names: dict[str, str], scope: ast.AST, where: str) -> Iterator[Line]:
    """What one call writes, if it writes; handed to somebody who is to call it later counts as well."""
    arguments, spoken = call.args, call.func
    if ast.unparse(spoken) == "logged_calls.logged":
        words = {**SAID_BY_DOORS, **{str(word.arg): word.value for word in call.keywords}}
        yield from (
            Line(where, text, DOOR_LEVELS[outcome])
            for outcome, word in words.items()
            for text in events(word, names, scope)
            if text
        )
    if ast.unparse(spoken) == "partial":
        arguments, spoken = arguments[1:], arguments[0]
    if isinstance(spoken, ast.Name) and spoken.id == "log":  # chosen before, with its level
        yield from (Line(where, event, CHOSEN) for event in events(arguments[0], names, scope))
    if not isinstance(spoken, ast.Attribute) or spoken.attr not in SPEAKS or not isinstance(spoken.value, ast.Name):
        return
    if spoken.value.id in LOGGERS:
        level = {"exception": "error", "log": CHOSEN}.get(spoken.attr, spoken.attr)
        event = arguments[1] if spoken.attr == "log" else arguments[0]
        yield from (Line(where, text, level) for text in events(event, names, scope))


def listed() -> dict[tuple[str, str], set[str]]:
    """Room, event and levels of each item of the page's lists."""
    found: dict[tuple[str, str], set[str]] = {}
    for part in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        where = part.split("`")[1]
        for event, levels in re.findall(r"^\* (`[^`]+`|\(…\))(?: \(([^()]+)\))?(?::|$)", part, re.MULTILINE):
            found[where, event.strip("`")] = set((levels or "warning").split(", "))
    return found


def test_the_page_lists_every_warning_and_error_with_its_level():
    rows, spoken = listed(), list(said())
    written: dict[tuple[str, str], set[str]] = {(line.room, line.event): set() for _, line in spoken}
    for _, line in spoken:
        written[line.room, line.event].add(line.level)
    abnormal = {row: levels for row, levels in written.items() if not levels <= NORMAL}
    assert [row for row in abnormal if row not in rows] == []
    assert [row for row in rows if row not in abnormal] == []
    assert {row: levels for row, levels in abnormal.items() if CHOSEN not in levels and levels != rows[row]} == {}


def test_every_room_that_speaks_has_a_name():
    assert [at for at, line in said() if not line.room] == []
