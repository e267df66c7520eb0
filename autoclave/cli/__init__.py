"""The command line: flags, errors, calls to the service, what verbs share. Lists the verbs and loads the one called.

It decides nothing. A verb is imported when it is called, so that ``autoclave --help`` is quick. Data goes to stdout;
progress, reasons and remedies go to stderr.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TextIO

import click

from scrubber import __version__

VERBS = {
    "scrubber": ("scrubber", "Run the scrub service of this node."),
    "plugin": ("plugin", "Run the device plugin of this node."),
    "dra": ("dra", "Run the DRA driver of this node."),
    "status": ("status", "Show the state of GPUs, and why."),
    "scrub": ("scrub", "Scrub GPUs now and prove them clean."),
    "wait": ("wait", "Wait until GPUs are clean or healthy, all at the same time."),
    "acquire": ("acquire", "Take clean GPUs for a job, on a node without a kubelet."),
    "release": ("acquire", "Give back the GPUs of a job that has ended."),
    "quarantine": ("scrub", "Quarantine GPUs until they are reinstated."),
    "reinstate": ("scrub", "End the quarantine of GPUs with a scrub and a self-test."),
    "explain": ("explain", "Explain why a GPU is in its state, and what to do."),
    "history": ("history", "List the events of the ledger, oldest first."),
    "receipt": ("receipt", "List, show, export and verify receipts, and show the key that signs them."),
    "ledger": ("ledger", "Check or export the ledger, with or without a running service."),
    "policy": ("policy", "Check and show policies, and name the one that applies to a GPU."),
    "xid": ("xid", "Explain a driver error code, and what this node does about it."),
    "doctor": ("doctor", "Check whether this node can prove GPUs clean; each finding has a remedy."),
    "remnant": ("remnant", "Find out what the next container sees of the last one on a GPU."),
    "access": ("access", "Find out who can open a GPU that it was not given."),
    "fence": ("fence", "Show or remove what refuses GPUs to others in the kernel, or show whom it would refuse."),
    "cdi": ("cdi", "Write the CDI specification of this node's GPUs, with nvidia-ctk."),
    "simulate": ("simulate", "Inject faults and processes on simulated GPUs."),
    "version": ("about", "Show the version of this command and of the running service."),
    "completion": ("about", "Print the completion script of a shell."),
}
"""For each verb: the module with its function, and its line in the list."""

SERVERS = frozenset({"scrubber", "plugin", "dra"})  # the verbs that SIGHUP does not end, not even while they start

EPILOG = """\
A GPU is named by its index, its UUID, or a unique prefix of its UUID. Verbs that take several accept spaces, commas,
ranges such as 0,2-4, and `all`. An index means the GPU that has it now, or had it last.

Every flag can also be set in the environment: --run-dir is AUTOCLAVE_RUN_DIR. Flags override the environment.

Exit codes: 0 done and clean, 1 not clean or refused, or stdout does not take the answer, 2 wrong usage, 3 service not
reachable, 4 left alone (nothing was done: the GPU belongs to a pod or a job, or does not need it), 5 not done within
--timeout, 6 a receipt is good but of a simulated GPU, 130 interrupted. Of several GPUs, the worst decides: 3, 2, 1, 6,
5, 4, 0.

Every error goes to stderr. -o json and the other formats change neither that nor the exit code. If a verb fails before
it has an answer, stdout stays empty.
"""

DONE, NOT_CLEAN, WRONG_USAGE, UNREACHABLE, LEFT_ALONE, LATE, SIMULATED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130
_FROM_BEST = (DONE, LEFT_ALONE, LATE, SIMULATED, NOT_CLEAN, WRONG_USAGE, UNREACHABLE, INTERRUPTED)

ELSEWHERE = {
    "cordon": "quarantine",
    "describe": "explain",
    "drain": "quarantine",
    "events": "history",
    "get": "status",
    "list": "status",
    "reset": "scrub --path reset",
    "uncordon": "reinstate",
    "unquarantine": "reinstate",
}
"""Words of other programs, and the command that does it here. They get an answer, and do not work as second names."""

ENVIRONMENT = {"auto_envvar_prefix": "AUTOCLAVE"}
"""``--run-dir`` is AUTOCLAVE_RUN_DIR for every verb; without this, click would call it AUTOCLAVE_STATUS_RUN_DIR."""


def worst(codes: Iterable[int]) -> int:
    """The exit code of a verb that has these for its GPUs."""
    return max(codes, key=_FROM_BEST.index, default=DONE)


class Verbs(click.Group):
    """Imports verbs by name, and ends every failure with one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order in which a newcomer needs them."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        del ctx
        if cmd_name not in VERBS:
            return None
        if cmd_name in SERVERS:
            _import_structlog_without_rich()
        command: click.Command = getattr(importlib.import_module(f"autoclave.cli.verbs.{VERBS[cmd_name][0]}"), cmd_name)
        if not gc.isenabled():  # ``main`` switched it off
            gc.freeze()  # what was loaded stays loaded
            gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a verb, or propose the command for a word of other programs, or verbs with a similar spelling."""
        if args[0] in ELSEWHERE:
            raise click.UsageError(f"no such command '{args[0]}'; use `autoclave {ELSEWHERE[args[0]]}`", ctx)
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=VERBS, ctx=ctx) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``autoclave help VERB`` is ``autoclave VERB --help``."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing one."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])

    def main(self, *args: Any, **extra: Any) -> NoReturn:  # noqa: ANN401 - handed on as it comes
        """Run a verb and exit with its code."""
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
            sys.stdout.flush()  # here, where a closed pipe is still handled
        except Exception as error:  # noqa: BLE001 - every error becomes one line and an exit code
            code = importlib.import_module("autoclave.cli.failure").report(error)
        sys.exit(code if isinstance(code, int) else 0)


class Group(click.Group):
    """Lists its verbs with their whole first sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, which cuts them to one line."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(500)) for name in self.list_commands(ctx)]
            )


def _import_structlog_without_rich() -> None:
    """Import structlog without rich, for a verb that logs.

    structlog imports rich wherever it is installed, to draw tracebacks on a terminal. These verbs write tracebacks
    as text. Without rich they start sooner, and the plugin is smaller by a tenth. Other modules can still import rich
    later.
    """
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]  # Python's way to say that a module does not exist
        try:
            importlib.import_module("structlog")
        finally:
            del sys.modules["rich"]


class Parsed(click.ParamType[Any]):
    """A value that a function parses. Its ValueError says what is expected."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        """``name`` is what the help text calls the value."""
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        """The value, or a usage error."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"found {value!r}, expected {error}", param, ctx)


# The parser is imported for a given value only, so that ``--help`` is quick.
DURATION = Parsed("duration", lambda text: importlib.import_module("ground.documents.units").parse_duration(text))


@click.group(
    cls=Verbs,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.version_option(__version__, prog_name="autoclave", message="%(prog)s %(version)s")
@click.option(
    "--service-wait",
    type=DURATION,
    default=5.0,
    show_default=False,
    envvar="AUTOCLAVE_SERVICE_WAIT",
    help="How long a verb waits for a scrub service whose socket is missing or refuses, because it may be starting; "
    "0s: not at all [default: 5s].",
)
def cli(service_wait: float) -> None:
    """Prove that a GPU is clean and healthy before a container gets it."""
    del service_wait  # for ``service_call``


class Unwritable(OSError):
    """Stdout does not take the answer, for a reason other than a pipe that its reader has closed."""


class _Output(io.FileIO):
    """Stdout or stderr. A reason that stderr does not take is lost; that must not change what a verb does."""

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - handed on as it comes
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            if self.fileno() == STDERR:
                return len(data)
            raise Unwritable(error.errno, error.strerror) from error


STDIN, STDOUT, STDERR = range(3)


def _open_outputs() -> None:
    """Stdout and stderr as streams, also where the caller has closed them.

    A file or a socket that is opened later must not get the number of one of them: it would get its text.
    """
    for number in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free, which is this one
    sys.stdout, sys.stderr = _stream(STDOUT, sys.stdout), _stream(STDERR, sys.stderr)


def _stream(number: int, before: TextIO | None) -> TextIO:
    raw = _Output(number, "w", closefd=False)
    encoding, errors = (before.encoding, before.errors) if before is not None else (None, "backslashreplace")
    by_line = number == STDERR or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=by_line)


def main() -> NoReturn:
    """The command ``autoclave``."""
    _open_outputs()
    if sys.argv[1:2] and sys.argv[1] in SERVERS:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # it waits until ``aio.on_hangup``
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # read when gRPC is imported; keeps its debug output from users
    gc.disable()  # loading a verb leaves no garbage: to search for it again and again takes a tenth of a start
    try:
        cli.main(prog_name="autoclave")
    finally:
        gc.freeze()  # the process ends: without this, Python first searches all loaded modules for garbage
