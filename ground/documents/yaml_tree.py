"""Parse YAML text into a tree in which every value knows its position.

It refuses YAML features that no document here needs: aliases (a small file can expand to gigabytes), tags, directives
(YAML 1.1 reads ``no`` as false), and several documents. Numbers are plain decimals. Other notations of numbers
(``0x1f``, ``1_000``, ``.inf``) stay text, which a numeric field then rejects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ruamel.yaml import YAML, events, nodes
from ruamel.yaml.error import MarkedYAMLError, StreamMark, YAMLError
from ruamel.yaml.reader import ReaderError

from ground.documents.faults import DocumentError, DocumentFault, Loc, path, quote, safe

DEEPEST = 16  # a policy has six levels; many more are a mistake, or an attack on recursive code
_WHOLE = re.compile(r"[-+]?[0-9]{1,15}")
_DECIMAL = re.compile(r"[-+]?[0-9]{1,15}\.[0-9]{1,15}")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")

Value: TypeAlias = "str | int | float | bool | dict[str, YamlNode] | list[YamlNode] | None"


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """The position of a value or a key. Lines and columns begin at 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value with its position, and the position of its key if it has one."""

    value: Value
    place: SourcePosition
    key: SourcePosition

    def child(self, part: str | int) -> YamlNode | None:
        """The value under a key or at an index of a list."""
        if isinstance(self.value, dict) and isinstance(part, str):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int):
            return self.value[part] if part < len(self.value) else None
        return None

    def find(self, loc: Loc) -> YamlNode | None:
        """The value at a location, or None if it is not in the file."""
        node: YamlNode | None = self
        for part in loc:
            node = node.child(part) if node is not None else None
        return node

    def nearest(self, loc: Loc) -> YamlNode:
        """The value at a location, or the innermost value around it."""
        return next(node for end in range(len(loc), -1, -1) if (node := self.find(loc[:end])) is not None)

    def plain(self) -> object:
        """The value as plain data, without positions."""
        match self.value:
            case dict() as mapping:
                return {key: node.plain() for key, node in mapping.items()}
            case list() as items:
                return [node.plain() for node in items]
            case scalar:
                return scalar


def parse(text: str, source: str) -> tuple[YamlNode, tuple[DocumentFault, ...]]:
    """The tree of a text, with the faults of its structure. Text that is not plain YAML raises DocumentError."""
    refusals = tuple(_refusals(text, source))
    if refusals:
        raise DocumentError(*refusals)
    root = YAML(typ="safe", pure=True).compose(text)
    if root is None:
        raise DocumentError(DocumentFault(source, 1, 1, "", "an empty file", "a mapping of keys and values"))
    builder = _Builder(source)
    return builder.node(root, root, ()), tuple(builder.faults)


def _refusals(text: str, source: str) -> Iterator[DocumentFault]:
    """What is refused before the tree is built, so that nothing can expand or recurse without limit."""
    depth, documents = 0, 0
    mark = StreamMark(source, 0, 0, 0)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            documents += isinstance(event, events.DocumentStartEvent)
            depth += isinstance(event, events.CollectionStartEvent) - isinstance(event, events.CollectionEndEvent)
            yield from _faults(source, event.start_mark, _refusal(event, depth, documents))
            mark = event.end_mark
    except ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        what = f"the control character {error.character:#04x}"
        yield DocumentFault(source, line, column, "", what, "printable text")
    except MarkedYAMLError as error:
        problem = ", ".join(filter(None, (error.problem, error.context)))
        yield from _faults(source, error.problem_mark or error.context_mark or mark, _broken(problem))
    except (YAMLError, ValueError) as error:  # ValueError: an escape beyond the last Unicode character
        yield from _faults(source, mark, _broken(str(error)))


def _refusal(event: events.Event, depth: int, documents: int) -> tuple[str, str] | None:
    match event:
        case events.DocumentStartEvent() if documents > 1:
            return "a second document", "one document in a file"
        case events.DocumentStartEvent(version=version, tags=tags) if version or tags:
            return "a % directive", "YAML 1.2 without directives"
        case events.AliasEvent(anchor=anchor):
            return f"the alias {quote(anchor)}", "the value written out"
        case events.NodeEvent(anchor=anchor) if anchor:
            return f"the anchor {quote(anchor)}", "a plain value, as aliases are refused"
        case events.ScalarEvent() | events.CollectionStartEvent() if event.tag is not None:
            return f"the tag {quote(event.tag)}", "a plain value"
        case events.CollectionStartEvent() if depth == DEEPEST + 1:
            return f"more than {DEEPEST} levels", f"at most {DEEPEST}"
        case events.ScalarEvent(value=value) if _HALF_CHARACTER.search(value):
            return "half of a surrogate pair (a \\ud800 escape)", "whole characters"
    return None


def _broken(problem: str) -> tuple[str, str]:
    return f"broken YAML ({safe(problem, longest=200)})", "valid YAML 1.2"


def _faults(source: str, mark: StreamMark, what: tuple[str, str] | None) -> Iterator[DocumentFault]:
    if what is not None:
        yield DocumentFault(source, mark.line + 1, mark.column + 1, "", *what)


class _Builder:
    """Builds our tree from the nodes of the parser, and collects faults."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.faults: list[DocumentFault] = []

    def node(self, node: nodes.Node, key: nodes.Node, loc: Loc) -> YamlNode:
        """A value and everything below it."""
        # The parser gives a missing value the position of the next value, often some lines below.
        place = _place(key if node.start_mark.index == node.end_mark.index else node)
        return YamlNode(self._value(node, place, loc), place, _place(key))

    def _value(self, node: nodes.Node, place: SourcePosition, loc: Loc) -> Value:
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

    def _mapping(self, pairs: list[tuple[nodes.Node, nodes.Node]], loc: Loc) -> dict[str, YamlNode]:
        mapping: dict[str, YamlNode] = {}
        for key, value in pairs:
            if not isinstance(key, nodes.ScalarNode):
                self._fault(_place(key), loc, "a key that is not text", "a word as the key")
            elif key.value in mapping:
                first = mapping[key.value].key.line
                self._fault(_place(key), (*loc, key.value), f"a duplicate key (first on line {first})", "each key once")
            else:
                mapping[key.value] = self.node(value, key, (*loc, key.value))
        return mapping

    def _fault(self, place: SourcePosition, loc: Loc, found: str, expected: str) -> None:
        self.faults.append(DocumentFault(self._source, place.line, place.column, path(loc), found, expected))


def _place(node: nodes.Node) -> SourcePosition:
    return SourcePosition(node.start_mark.line + 1, node.start_mark.column + 1)


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
