"""Reads the configuration file of a program: YAML whose keys are the flags of the program, with dashes or underscores.

All faults of a file are reported at once, with their places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from scrubber.ground.documents import tree
from scrubber.ground.documents.faults import DocumentError, DocumentFault, describe
from scrubber.ground.documents.tree import YamlNode
from scrubber.ground.errors import FatalError


def read(file: Path, check: Callable[[YamlNode], Iterable[DocumentFault]]) -> Mapping[str, YamlNode]:
    """The values by the name of their flag, with underscores. FatalError with all faults of the file.

    ``check`` finds the faults of the values, in a mapping with these names.
    """
    text = _text(file)
    try:
        return _values(text, str(file), check)
    except DocumentError as error:
        raise FatalError(f"cannot use the configuration {file}: correct these faults\n{error}") from error


def _values(text: str, source: str, check: Callable[[YamlNode], Iterable[DocumentFault]]) -> Mapping[str, YamlNode]:
    root, faults = tree.parse(text, source)
    if not isinstance(root.value, dict):
        found, expected = describe(root.plain()), "a mapping of keys and values"
        raise DocumentError(DocumentFault(source, root.place.line, root.place.column, "", found, expected))
    values, twice = _by_flag(root.value, source)
    if wrong := (*faults, *twice, *check(YamlNode(values, root.place, root.key))):
        raise DocumentError(*wrong)
    return values


def _text(file: Path) -> str:
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise FatalError(f"cannot read the configuration {file}: {why}; name another with --config") from error
    blank = all(not line.split("#")[0].strip() for line in text.splitlines())
    return "{}" if blank else text  # a file with only comments means all defaults


def _by_flag(keys: Mapping[str, YamlNode], source: str) -> tuple[dict[str, YamlNode], list[DocumentFault]]:
    """The values by flag, and a fault for each key in both spellings. Leaves out a key without a value."""
    values: dict[str, YamlNode] = {}
    twice: list[DocumentFault] = []
    for key, node in keys.items():
        name = key.replace("-", "_")
        if name in values:
            found = f"a duplicate key (first on line {values[name].key.line})"
            twice.append(DocumentFault(source, node.key.line, node.key.column, key, found, "each key once"))
        elif node.value is not None:  # the tree has already reported a key without a value
            values[name] = node
    return values, twice
