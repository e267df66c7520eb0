"""How every failure ends: a line on stderr (what could not be done, why, what to do now) and an exit code."""

from __future__ import annotations

import os
import sys
import traceback

import click
from click.core import ParameterSource

from policies.faults import PolicyError
from scrubber.cli import human
from scrubber.devices.base import DeviceError
from scrubber.ground.errors import AutoclaveError, FatalError, InvalidRequest, Reason, Unreachable

NOT_CLEAN, WRONG_USAGE, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130


def report(error: Exception) -> int:
    """Say what went wrong, and answer with the exit code for it."""
    match error:
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return WRONG_USAGE
        case click.UsageError():
            return _say(_usage(error), WRONG_USAGE)
        case click.Abort():
            return INTERRUPTED
        case BrokenPipeError():
            # Whoever read has left; what is still buffered has no reader, and Python would complain about it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return NOT_CLEAN
        case Unreachable():
            return _say(error.message, UNREACHABLE)
        case InvalidRequest():
            return _say(_question(error), WRONG_USAGE)
        case FatalError() | PolicyError():
            return _say(str(error), WRONG_USAGE)
        case AutoclaveError() | DeviceError():
            return _say(str(error), NOT_CLEAN)
    return _unexpected(error)


def _say(message: str, code: int) -> int:
    lines = [human.printable(line) for line in message.splitlines()]
    click.echo("\n".join(["autoclave: " + lines[0], *lines[1:]]) if lines else "autoclave: it failed", err=True)
    return code


def _question(error: InvalidRequest) -> str:
    """The service's no to a question, told to the person who asked it."""
    told = error.message if error.message.startswith("cannot") else f"cannot do that: {error.message}"
    return f"{told}; `autoclave status` lists the GPUs" if error.reason is Reason.UNKNOWN_DEVICE else told


def _usage(error: click.UsageError) -> str:
    """What click found, as one line in the words of the house."""
    told = error.format_message().strip().removesuffix(".")
    what = f"{told[:1].lower()}{told[1:]}{_variable(error)}".replace("\n", " ")
    if error.ctx is None:
        return what
    command = error.ctx.command_path
    return f"cannot run `{command}`: {what}{'' if what.endswith('?') else ';'} see `{command} --help`"


def _variable(error: click.UsageError) -> str:
    """The variable that a bad value came from: somebody who typed no flag must be told where to look."""
    parameter = getattr(error, "param", None)
    if not isinstance(parameter, click.Option) or error.ctx is None or parameter.name is None:
        return ""
    if error.ctx.get_parameter_source(parameter.name) is not ParameterSource.ENVIRONMENT:
        return ""
    return f" (from {parameter.envvar or f'{error.ctx.auto_envvar_prefix}_{parameter.name.upper()}'})"


def _unexpected(error: Exception) -> int:
    if os.environ.get("AUTOCLAVE_DEBUG"):
        traceback.print_exception(error)
    return _say(f"it failed in an unexpected way ({_named(error)}); AUTOCLAVE_DEBUG=1 shows where", NOT_CLEAN)


def _named(error: Exception) -> str:
    told = " ".join(str(error).split())
    return f"{type(error).__name__}: {told}" if told else type(error).__name__
