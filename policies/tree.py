"""YAML text to a tree in which every value knows its place.

What YAML offers beyond plain data is refused, as none of it belongs into a policy: aliases (a small file that unfolds
to gigabytes), tags, directives (YAML 1.1 reads ``no`` as false), several documents. Numbers are plain decimals; what
else looks like one (``0x1f``, ``1_000``, ``.inf``) stays text, and a field that wants a number says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ruamel.yaml import YAML, events, nodes
from ruamel.yaml.error import MarkedYAMLError, StreamMark, YAMLError
from ruamel.yaml.reader import ReaderError

from policies.faults import Fault, Loc, PolicyError, path, quote, safe

DEEPEST = 16  # a policy is six levels deep; many more are a mistake, or an attack on what recurses below
_WHOLE = re.compile(r"[-+]?[0-9]{1,15}")
_DECIMAL = re.compile(r"[-+]?[0-9]{1,15}\.[0-9]{1,15}")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")

Value: TypeAlias = "str | int | float | bool | dict[str, Node] | list[Node] | None"


@dataclass(frozen=True, slots=True)
class Place:
    """Where something begins, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Node:
    """A value, where it stands, and where its key stands if it has one."""

    value: Value
    place: Place
    key: Place

    def child(self, part: str | int) -> Node | None:
        """The value under a key or at a position of a list."""
        if isinstance(self.value, dict) and isinstance(part, str):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int):
            return self.value[part] if part < len(self.value) else None
        return None

    def find(self, loc: Loc) -> Node | None:
        """The value at a location, if it is written down."""
        node: Node | None = self
        for part in loc:
            node = node.child(part) if node is not None else None
        return node

    def nearest(self, loc: Loc) -> Node:
        """The value at a location, or the innermost one around the place where it is missing."""
        return next(node for end in range(len(loc), -1, -1) if (node := self.find(loc[:end])) is not None)

    def plain(self) -> object:
        """The value without its places."""
        match self.value:
            case dict() as mapping:
                return {key: node.plain() for key, node in mapping.items()}
            case list() as items:
                return [node.plain() for node in items]
            case scalar:
                return scalar


def parse(text: str, source: str) -> tuple[Node, tuple[Fault, ...]]:
    """The tree of a text, with what is wrong in its structure; text that is no plain YAML raises at once."""
    refusals = tuple(_refusals(text, source))
    if refusals:
        raise PolicyError(*refusals)
    root = YAML(typ="safe", pure=True).compose(text)
    if root is None:
        raise PolicyError(Fault(source, 1, 1, "", "an empty file", "a mapping of keys and values"))
    builder = _Builder(source)
    return builder.node(root, root, ()), tuple(builder.faults)


def _refusals(text: str, source: str) -> Iterator[Fault]:
    """What is refused before any structure is built, so that nothing can unfold or recurse without end."""
    depth, documents = 0, 0
    mark = StreamMark(source, 0, 0, 0)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            documents += isinstance(event, events.DocumentStartEvent)
            depth += isinstance(event, events.CollectionStartEvent) - isinstance(event, events.CollectionEndEvent)
            yield from _faults(source, event.start_mark, _refusal(event, depth, documents))
            mark = event.end_mark
    except ReaderError as error:
        yield _unreadable(text, source, error)
    except MarkedYAMLError as error:
        problem = ", ".join(filter(None, (error.problem, error.context)))
        yield from _faults(source, error.problem_mark or error.context_mark or mark, _broken(problem))
    except (YAMLError, ValueError) as error:  # ValueError: an escape beyond the last character there is
        yield from _faults(source, mark, _broken(str(error)))


def _refusal(event: events.Event, depth: int, documents: int) -> tuple[str, str] | None:
    match event:
        case events.DocumentStartEvent() if documents > 1:
            return "a second document", "one document in a file"
        case events.DocumentStartEvent(version=version, tags=tags) if version or tags:
            return "a % directive", "plain YAML 1.2 without directives"
        case events.AliasEvent(anchor=anchor):
            return f"the alias {quote(anchor)}", "the value written out"
        case events.NodeEvent(anchor=anchor) if anchor:
            return f"the anchor {quote(anchor)}", "a plain value, as aliases are refused"
        case events.ScalarEvent() | events.CollectionStartEvent() if event.tag is not None:
            return f"the tag {quote(event.tag)}", "a plain value"
        case events.CollectionStartEvent() if depth == DEEPEST + 1:
            return f"more than {DEEPEST} levels", f"at most {DEEPEST}"
        case events.ScalarEvent(value=value) if _HALF_CHARACTER.search(value):
            return "half of a character (a \\ud800 escape)", "whole characters"
    return None


def _broken(problem: str) -> tuple[str, str]:
    return f"broken YAML ({safe(problem, longest=200)})", "valid YAML 1.2"


def _faults(source: str, mark: StreamMark, what: tuple[str, str] | None) -> Iterator[Fault]:
    if what is not None:
        yield Fault(source, mark.line + 1, mark.column + 1, "", *what)


def _unreadable(text: str, source: str, error: ReaderError) -> Fault:
    before = text[: error.position]
    line, column = before.count("\n") + 1, error.position - before.rfind("\n")
    return Fault(source, line, column, "", f"the control character {error.character:#04x}", "printable text")


class _Builder:
    """Turns nodes of the parser into ours, and collects what is wrong on the way."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.faults: list[Fault] = []

    def node(self, node: nodes.Node, key: nodes.Node, loc: Loc) -> Node:
        """One value and everything below it."""
        # The parser puts a value that is not there where the next one begins, often lines below.
        place = _place(key if node.start_mark.index == node.end_mark.index else node)
        return Node(self._value(node, place, loc), place, _place(key))

    def _value(self, node: nodes.Node, place: Place, loc: Loc) -> Value:
        match node:
            case nodes.MappingNode(value=pairs):
                return self._mapping(pairs, loc)
            case nodes.SequenceNode(value=items):
                return [self.node(item, item, (*loc, index)) for index, item in enumerate(items)]
            case _:
                value = _scalar(node)
                if value is None:
                    self._fault(place, loc, "nothing", "a value; leave the key out to keep the default")
                return value

    def _mapping(self, pairs: list[tuple[nodes.Node, nodes.Node]], loc: Loc) -> dict[str, Node]:
        mapping: dict[str, Node] = {}
        for key, value in pairs:
            if not isinstance(key, nodes.ScalarNode):
                self._fault(_place(key), loc, "a key that is no text", "a word as the key")
            elif key.value in mapping:
                first = mapping[key.value].key.line
                self._fault(_place(key), (*loc, key.value), f"the key again (first on line {first})", "each key once")
            else:
                mapping[key.value] = self.node(value, key, (*loc, key.value))
        return mapping

    def _fault(self, place: Place, loc: Loc, found: str, expected: str) -> None:
        self.faults.append(Fault(self._source, place.line, place.column, path(loc), found, expected))


def _place(node: nodes.Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


def _scalar(node: nodes.Node) -> str | int | float | bool | None:
    text: str = node.value
    match str(node.tag).rpartition(":")[2]:
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int" if _WHOLE.fullmatch(text):
            return int(text)
        case "float" if _DECIMAL.fullmatch(text):
            return float(text)
    return text
