"""Reads the configuration file of a verb and converts its values as if they were flags.

Only a process with ``--config`` imports this module.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

import click

from scrubber.ground.documents import config_file
from scrubber.ground.documents.faults import DocumentFault, describe
from scrubber.ground.documents.tree import YamlNode


def load(file: Path, ctx: click.Context) -> dict[str, object]:
    """The values of the file by parameter name, in the form that each flag takes."""
    options = {option.name: option for option in ctx.command.params if isinstance(option, click.Option) and option.name}
    del options["file"]  # a configuration file cannot name another one

    def check(root: YamlNode) -> Iterator[DocumentFault]:
        for name, node in root.value.items() if isinstance(root.value, dict) else ():
            option = options.get(name)
            if problem := _unfit(name, option, node.plain(), ctx):
                place = node.key if option is None else node.place
                yield DocumentFault(str(file), place.line, place.column, name, *problem)

    values = {name: node.plain() for name, node in config_file.read(file, check).items()}
    # A flag that may be repeated takes a list only.
    alone = {name for name, value in values.items() if options[name].multiple and not isinstance(value, list)}
    return {name: [value] if name in alone else value for name, value in values.items()}


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
