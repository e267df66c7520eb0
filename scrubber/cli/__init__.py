"""The command line: one verb, one file. A verb asks, shows and leaves; it decides nothing.

Verbs are loaded when they are called, so that ``autoclave --help`` is quick: this package itself imports click and
nothing else that is slow. Data goes to stdout; progress, reasons and remedies go to stderr. Exit codes: 0 done and
clean, 1 not clean or refused, 2 wrong usage, 3 service not reachable, 130 interrupted.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import Any, NoReturn

import click

from scrubber import __version__

VERBS = {
    "demo": ("demo", "Show the whole story on simulated GPUs."),
    "scrubber": ("scrubber", "Run the scrub service of this node."),
    "plugin": ("plugin", "Run the device plugin of this node."),
    "status": ("status", "Show GPUs: where each stands, and why."),
    "scrub": ("scrub", "Scrub GPUs now and prove them clean."),
    "acquire": ("acquire", "Take clean GPUs for a job, where no kubelet hands them out."),
    "release": ("release", "Give GPUs back that a job had, once the job has ended."),
    "quarantine": ("quarantine", "Take a GPU out until somebody reinstates it."),
    "reinstate": ("reinstate", "Bring a quarantined GPU back through the slow path."),
    "explain": ("explain", "Tell how a GPU came to be where it is."),
    "history": ("history", "List what happened, oldest first."),
    "ledger": ("ledger", "Check or export the ledger, with or without a running service."),
    "policy": ("policy", "Check and show policies, and say which one applies to a GPU."),
    "xid": ("xid", "Say what a driver error code means, and what this node does on it."),
    "doctor": ("doctor", "Say whether this node can keep the promise; each finding with its remedy."),
    "simulate": ("simulate", "Cause things on simulated GPUs."),
    "completion": ("completion", "Print the completion script of a shell."),
}
"""What there is to type: the file that holds the verb, and its line in the list."""

EPILOG = """\
A GPU is named by its index, its UUID, or the beginning of a UUID that only one GPU has.

Every flag can also be set in the environment: --run-dir is AUTOCLAVE_RUN_DIR. Flags win.

Exit codes: 0 done and clean, 1 not clean or refused, 2 wrong usage, 3 service not reachable, 130 interrupted.
"""


class Verbs(click.Group):
    """Knows its verbs by name, and ends every failure with one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order a newcomer needs them."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a verb."""
        del ctx
        if cmd_name not in VERBS:
            return None
        gc.disable()  # loading leaves no garbage: to search for it again and again takes a tenth of the time of a start
        command: click.Command = importlib.import_module(f"scrubber.cli.verbs.{VERBS[cmd_name][0]}").command
        gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a verb, or propose the ones that are spelled much like it."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=VERBS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without loading one."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])

    def main(self, *args: Any, **extra: Any) -> NoReturn:  # noqa: ANN401 - handed on as it comes
        """Run a verb and exit with its code."""
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
            sys.stdout.flush()  # here, where a closed pipe can still be answered
        except Exception as error:  # noqa: BLE001 - the entry: whatever happens ends as one line and an exit code
            code = importlib.import_module("scrubber.cli.failure").report(error)
        sys.exit(code if isinstance(code, int) else 0)


@click.group(
    cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="autoclave", message="%(prog)s %(version)s")
def cli() -> None:
    """Prove that a GPU is clean and healthy before a container gets it."""


def main() -> NoReturn:
    """The command ``autoclave``."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # read when gRPC is loaded: what it chats is not for our users
    try:
        cli.main(prog_name="autoclave")
    finally:
        gc.freeze()  # the process ends: without this Python searches everything that was loaded for garbage first
