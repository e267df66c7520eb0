"""Reads the configuration file of a verb: YAML whose keys are the flags of the verb.

Only a process with ``--config`` imports this module. All faults of the file are reported at once, with their places.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from scrubber.ground.documents import faults, tree
from scrubber.ground.errors import FatalError


def load(file: Path, ctx: click.Context) -> dict[str, object]:
    """The values of the file by parameter name, in the form that each flag takes."""
    options = {option.name: option for option in ctx.command.params if isinstance(option, click.Option) and option.name}
    del options["file"]  # a configuration file cannot name another one
    values: dict[str, object] = {}
    wrong: list[faults.PolicyFault] = []
    for key, node in _entries(file, wrong):
        name = key.replace("-", "_")
        option = options.get(name)
        problem = _twice(name, values) or _unfit(option, node.plain(), ctx)
        if problem is not None:
            place = node.key if option is None or name in values else node.place
            wrong.append(faults.PolicyFault(str(file), place.line, place.column, faults.path((key,)), *problem))
        values.setdefault(name, node.plain())
    if wrong:
        raise FatalError(f"cannot use the configuration {'; '.join(map(str, faults.PolicyError(*wrong).faults))}")
    return values


def _entries(file: Path, wrong: list[faults.PolicyFault]) -> Iterator[tuple[str, tree.YamlNode]]:
    text = _text(file)
    if all(not line.split("#")[0].strip() for line in text.splitlines()):
        return  # all lines are comments: use the defaults
    try:
        root, found = tree.parse(text, str(file))
    except faults.PolicyError as error:
        wrong.extend(error.faults)
        return
    wrong.extend(found)
    if not isinstance(root.value, dict):
        place = root.place
        wrong.append(
            faults.PolicyFault(str(file), place.line, place.column, "", "no keys", "a mapping of keys and values")
        )
        return
    yield from ((key, node) for key, node in root.value.items() if node.value is not None)  # already reported


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise FatalError(f"cannot read the configuration {file}: {why}; name another with --config") from error


def _twice(name: str, values: dict[str, object]) -> tuple[str, str] | None:
    return ("the key again", "each key once") if name in values else None


def _unfit(option: click.Option | None, value: object, ctx: click.Context) -> tuple[str, str] | None:
    """What was found and what is expected, when the flag does not take the value."""
    if option is None:
        return "a key that no flag has", f"one of the flags of `{ctx.command_path} --help`"
    found = faults.describe(value)
    if option.is_flag:
        return None if isinstance(value, bool) else (found, "true or false")
    items = value if option.multiple and isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in items):
        return found, "text, or a list of texts" if option.multiple else "text"
    if isinstance(option.type, click.Path) and not Path(str(value)).is_absolute():
        return found, "an absolute path"
    try:
        option.type_cast_value(ctx, items if option.multiple else value)
    except click.BadParameter as error:
        return found, f"a value that the flag takes: {error.message.rstrip('.')}"
    return None
