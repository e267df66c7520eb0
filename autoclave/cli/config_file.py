"""Reads the configuration file of a verb: YAML whose keys are its flags, with dashes or underscores.

The values are converted as if they were flags. All faults of a file are reported at once, with their
places. Only a process with ``--config`` imports this module.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

import click

from ground.documents import yaml_tree
from ground.documents.faults import DocumentError, DocumentFault, describe
from ground.documents.yaml_tree import YamlNode
from ground.errors import FatalError


def load(file: Path, ctx: click.Context) -> dict[str, object]:
    """The values of the file by parameter name, in the form that each flag takes. FatalError with all faults."""
    options = {option.name: option for option in ctx.command.params if isinstance(option, click.Option) and option.name}
    del options["file"]  # a configuration file cannot name another one
    try:
        values = {name: node.plain() for name, node in _values(file, options, ctx).items()}
    except DocumentError as error:
        raise FatalError(f"cannot use the configuration {file}: correct these faults\n{error}") from error
    # A flag that may be repeated takes a list only.
    alone = {name for name, value in values.items() if options[name].multiple and not isinstance(value, list)}
    return {name: [value] if name in alone else value for name, value in values.items()}


def _values(file: Path, options: Mapping[str, click.Option], ctx: click.Context) -> Mapping[str, YamlNode]:
    """The values by the name of their flag, with underscores. DocumentError with all faults."""
    source = str(file)
    root, faults = yaml_tree.parse(_text(file), source)
    if not isinstance(root.value, dict):
        found, expected = describe(root.plain()), "a mapping of keys and values"
        raise DocumentError(DocumentFault(source, root.place.line, root.place.column, "", found, expected))
    values, twice = _by_flag(root.value, source)
    wrong = [*faults, *twice]
    for name, node in values.items():
        option = options.get(name)
        if problem := _unfit(name, option, node.plain(), ctx):
            place = node.key if option is None else node.place
            wrong.append(DocumentFault(source, place.line, place.column, name, *problem))
    if wrong:
        raise DocumentError(*wrong)
    return values


def _text(file: Path) -> str:
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise FatalError(f"cannot read the configuration {file}: {why}", "name another with --config") from error
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


def _unfit(name: str, option: click.Option | None, value: object, ctx: click.Context) -> tuple[str, str] | None:
    """What was found and what is expected, when the flag does not take the value."""
    if option is None:
        near = difflib.get_close_matches(name, [param.name for param in ctx.command.params if param.name], n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return "a key that no flag has", f"one of the flags of `{ctx.command_path} --help`{hint}"
    found = describe(value)
    if option.is_flag:
        return None if isinstance(value, bool) else (found, "true or false")
    wanted: type = str
    expected = f"text such as {option.default}" if option.default and isinstance(option.default, str) else "text"
    if isinstance(option.type, click.IntRange):
        wanted, expected = int, "a whole number"
    elif option.multiple:
        expected = "text, or a list of texts"
    items = value if option.multiple and isinstance(value, list) else [value]
    if not all(type(item) is wanted for item in items):  # a bool is an int for isinstance
        return found, expected
    if isinstance(option.type, click.Path) and not Path(str(value)).is_absolute():
        return found, "an absolute path"
    try:
        option.type_cast_value(ctx, items if option.multiple else value)
    except click.BadParameter as error:
        return found, f"a value that the flag takes: {error.message.rstrip('.')}"
    return None
