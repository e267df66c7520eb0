"""Turns every error, of click's usage or of ours, into one line on stderr and an exit code.

The line says what could not be done, why, and what to do. On a terminal, each thing to do has a line of its own.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import traceback
from typing import TextIO

import click
from click.core import ParameterSource

from autoclave.cli import INTERRUPTED, LEFT_ALONE, NOT_CLEAN, UNREACHABLE, WRONG_USAGE, Unwritable
from autoclave.cli.output import human
from ground import paths, private_files
from ground.documents.faults import DocumentError
from ground.errors import AutoclaveError, ErrorWithRemedies, FatalError, InvalidRequest, Reason, Unreachable, joined
from scrubber import __version__
from scrubber.devices.base import DeviceError

_REPORT = """\
`{command}` ended with an unexpected error.

Before you publish this text, remove what nobody else may know: it can name pods, users and paths of your machine.

* autoclave {version}
* {machine}

```
{traceback}```
"""
"""In Markdown, to be pasted into an issue. Only the command and the error can hold values."""

_LISTED = "`autoclave status` lists the GPUs, and the log of the scrub service says which GPU cannot be read"


def report(error: Exception) -> int:
    """Print the error and return its exit code."""
    match error:
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return WRONG_USAGE
        case click.UsageError():
            return _print(_usage(error), WRONG_USAGE)
        case click.Abort():
            return INTERRUPTED
        case BrokenPipeError():
            _forget_the_rest(sys.stdout, sys.stderr)  # the reader closed the pipe
            return NOT_CLEAN
        case Unwritable():
            _forget_the_rest(sys.stdout)
            why = f"{error.strerror}; run the command again with another stdout"
            return _print(f"cannot write the answer to stdout: {why}", NOT_CLEAN)
        case Unreachable():
            return _print_error(error, UNREACHABLE, "`autoclave doctor` says more")
        case InvalidRequest(reason=Reason.UNKNOWN_DEVICE):
            return _print_error(error, WRONG_USAGE, _LISTED)
        case InvalidRequest() | FatalError() | DocumentError():
            return _print_error(error, WRONG_USAGE)
        case UnicodeEncodeError(reason="surrogates not allowed"):  # Python marks so what it could not read as UTF-8
            return _print("cannot send the request: an argument is not UTF-8", WRONG_USAGE)
        case AutoclaveError(reason=Reason.OTHER_OWNER):
            return _print_error(error, LEFT_ALONE)
        case AutoclaveError() | DeviceError():
            return _print_error(error, NOT_CLEAN)
    return _print(_unexpected(error), NOT_CLEAN)


def _unexpected(error: Exception) -> str:
    """A fault of the program: what happened, and the file with all that a report of it needs, or else that itself."""
    text = " ".join(str(error).split())
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    report = _REPORT.format(
        command=shlex.join(["autoclave", *sys.argv[1:]]),
        version=__version__,
        machine=f"Python {platform.python_version()}, {platform.platform()}",
        traceback="".join(traceback.format_exception(error)),
    )
    try:
        file = paths.error_report()
        private_files.make_folder(file.parent)
        private_files.replace(file, report.encode(errors="backslashreplace"), durable=False)
    except (OSError, RuntimeError):  # the home is read-only, or there is none
        return f"unexpected error: {named}; report it as\n{report}"
    return joined(f"unexpected error: {named}", f"report it with the text in {file}")


def _forget_the_rest(*streams: TextIO) -> None:
    """Without this, Python prints an error about what is still to be written at its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nothing, stream.fileno())


def _print_error(error: Exception, code: int, *more: str) -> int:
    """``more``: what to do beside its own remedies."""
    if not isinstance(error, ErrorWithRemedies) or not sys.stderr.isatty():
        return _print(joined(str(error), *more), code)
    _print(error.message, code)
    human.hint(*error.remedies, *more)
    return code


def _print(message: str, code: int) -> int:
    lines = [human.printable(line) for line in message.splitlines()]
    click.echo(
        "\n".join(["autoclave: " + lines[0], *lines[1:]]) if lines else "autoclave: failed without a message", err=True
    )
    return code


def _usage(error: click.UsageError) -> str:
    """A usage error of click, as one line in our format."""
    text = error.format_message().strip().removesuffix(".")
    what = " ".join(f"{text[:1].lower()}{text[1:]}{_variable(error)}{_side(error)}".split())  # without tabs of click's
    if error.ctx is None:
        return what
    command = error.ctx.command_path
    return f"cannot run `{command}`: {what}{'' if what.endswith('?') else ';'} see `{command} --help`"


def _side(error: click.UsageError) -> str:
    """Says on which side of the verb an option stands that the command does not know."""
    if not isinstance(error, click.NoSuchOption) or error.possibilities or error.ctx is None:
        return ""
    root = error.ctx.find_root()
    if error.ctx is root:
        return ": options of a verb stand after it"
    return (
        ": it stands before the verb" if any(error.option_name in option.opts for option in root.command.params) else ""
    )


def _variable(error: click.UsageError) -> str:
    """Names the environment variable that a wrong value came from."""
    parameter = getattr(error, "param", None)
    if not isinstance(parameter, click.Option) or error.ctx is None or parameter.name is None:
        return ""
    if error.ctx.get_parameter_source(parameter.name) is not ParameterSource.ENVIRONMENT:
        return ""
    return f" (from {parameter.envvar or f'{error.ctx.auto_envvar_prefix}_{parameter.name.upper()}'})"
