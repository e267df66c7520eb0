"""``autoclave receipt``: its flags; ``handover_table``, ``verified_receipts`` and ``signed_receipts`` do the work."""

from __future__ import annotations

import importlib
import platform
from pathlib import Path
from typing import Any

import click

from autoclave.cli import ENVIRONMENT, Group, Parsed, options
from autoclave.cli.output import human
from ground import paths

READABLE = click.Path(exists=True, path_type=Path)


@click.group(cls=Group)
def receipt() -> None:
    """List, show, export and verify receipts, and show the key that signs them."""


@receipt.command("list", context_settings=ENVIRONMENT)
@options.one_or_every_gpu
@click.option(
    "--since", type=Parsed("time", human.since), show_default="30d; with --file, all",
    help="Hand-overs that went on or were wiped since then: 30d (ago), 2026-11-20 09:00 (local), or RFC 3339.",
)  # fmt: skip
@click.option(
    "--until", type=Parsed("time", human.since), default=0.0, show_default=False,
    help="Hand-overs that began until then, as in --since.",
)  # fmt: skip
@click.option(
    "--file", type=click.Path(dir_okay=False, path_type=Path), envvar="AUTOCLAVE_FILE",
    help="A copy of a ledger. The service is not asked.",
)  # fmt: skip
@options.checkpoints
@options.keys
@options.node_name
@options.output("table", "csv", "json", "jsonl", "yaml")
@options.run_dir
@options.state_dir
def listing(  # noqa: PLR0913, PLR0917 - its flags
    gpu: str, since: float | None, until: float, file: Path | None, checkpoints: tuple[Path, ...],
    keys: tuple[Path, ...], node_name: str, output: str, run_dir: Path, state_dir: Path,
) -> None:  # fmt: skip
    """List the hand-overs of GPUs: who had which GPU when, what was proven before, and which wipe followed.

    One line for each hand-over, oldest first. A hand-over is in the list if it began before --until, and was not yet
    wiped at --since: regular lists leave none out, and repeat those that went on. An index means each GPU that had it
    when the hand-over began, or may have had it. The tenant is the pod, by its UID if its name was never known, or the
    job or claim that the GPU was acquired for. The table shows local time; the other formats show UTC and more columns.
    `unsigned`: the receipt is not signed; `unknown`: its row is no longer in the ledger; `not its own`: the signed
    document is of another scrub or hand-over.

    The list is as trustworthy as the ledger. With --checkpoint, a copy is checked first, as by `autoclave ledger
    verify`, and `vouched` says of each line whether the checkpoints vouch for all of its rows. If the service does not
    answer, the list comes from the ledger in --state-dir, and stderr says so. With --state-dir and without --run-dir,
    the service is not asked, as with --file.
    """
    handovers = importlib.import_module("autoclave.cli.handover_table")  # late: it decodes events
    if file is None and options.names_a_copy():
        file = paths.ledger(state_dir)
    # What is in the environment may be for another verb: without a copy all of it, and a key in any case.
    if file is None and options.typed("checkpoints", "keys"):
        raise click.UsageError("checkpoints and keys are compared with a copy: name it with --file")
    first = since if since is not None else 0.0 if file else human.since("30d")
    vouched = None
    if file is not None and (checkpoints or options.typed("keys")):
        vouched = handovers.vouched(file, state_dir, checkpoints, keys)
    rows = handovers.read(file, run_dir, state_dir, gpu, first, audited=vouched is not None)
    host = "" if file else platform.node()  # a copy may be of any node
    handovers.show(rows, node_name, output, since=first, until=until, host=host, vouched=vouched)
    if since is None:
        handovers.warn_of_earlier(rows, first)


def _not_empty(_context: click.Context, _option: click.Parameter, value: str | None) -> str:
    """The value of a flag, empty without the flag. An empty value, as of an unset variable, would compare nothing."""
    if value == "":
        raise click.BadParameter("it is empty; give a value, or leave the flag out")
    return value or ""


@receipt.command(context_settings=ENVIRONMENT)
@click.argument("path", type=READABLE, required=False)
@click.option(
    "--key", "keys", type=READABLE, multiple=True, required=True, metavar="FILE", envvar="AUTOCLAVE_KEY",
    help="The node's public key, or with --site-key a document that vouches for it; may be repeated.",
)  # fmt: skip
@click.option(
    "--site-key", "site_keys", type=READABLE, multiple=True, metavar="FILE", envvar="AUTOCLAVE_SITE_KEY",
    help="The public key of the site that vouches for the node's key; may be repeated.",
)  # fmt: skip
@click.option("--gpu", callback=_not_empty, metavar="UUID", help="The GPU that the receipt must be for.")
@click.option(
    "--handover", callback=_not_empty, metavar="ID", help="The hand-over  [default: the name of the directory]."
)
@click.option(
    "--boot", callback=_not_empty, metavar="ID", help="The boot of the node, as in /proc/sys/kernel/random/boot_id."
)
@click.option(
    "--checkpoint", "checkpoints", type=READABLE, multiple=True, metavar="FILE", envvar="AUTOCLAVE_CHECKPOINT",
    help="A signed checkpoint from elsewhere, or lines of the service's log; may be repeated.",
)  # fmt: skip
@click.option("--closing", is_flag=True, help="PATH is a closing receipt, about who else opened the GPU.")
@options.output("text", "json", "yaml")
def verify(  # noqa: PLR0913, PLR0917 - its flags
    path: Path | None, keys: tuple[Path, ...], site_keys: tuple[Path, ...], gpu: str, handover: str, boot: str,
    checkpoints: tuple[Path, ...], closing: bool, output: str,
) -> int:  # fmt: skip
    """Verify a receipt, on any machine: who signed it, what it is for, and that the node's log has it.

    For a closing receipt, it does not judge the counts: read them in the output.

    PATH is a directory as a container sees it, /run/autoclave/receipts/ID, or the signed document alone. Without PATH,
    in a container, each of its GPUs must have a receipt of this hand-over and this boot, and -o json prints a document
    for each. A key is a PEM, base64, or a verifier key of signed notes. Exit code 1, with what is wrong or missing, if
    the check fails; 6 if the receipt is good and its GPU is simulated, so that it claims nothing about hardware.
    """
    receipts = importlib.import_module("autoclave.cli.verified_receipts")  # late: most verbs verify nothing
    if closing and path is None:
        raise click.UsageError("--closing needs a PATH: a container does not have its own closing receipt")
    code: int = receipts.verify(path, (keys, site_keys, checkpoints), (gpu, boot, handover), output, _kind(closing))
    return code


def _kind(closing: bool) -> Any:  # noqa: ANN401 - of a module that is loaded late
    kinds = importlib.import_module("autoclave.cli.output.statement_words")
    return kinds.CLOSINGS if closing else kinds.RECEIPTS


CLOSING = click.option(
    "--closing", is_flag=True,
    help="The closing receipt: who else opened the GPU. ID is that of the wipe. Also of a tenant (pod, UID or owner).",
)  # fmt: skip


@receipt.command(context_settings=ENVIRONMENT)
@click.argument("receipt", metavar="ID|GPU", shell_complete=options.complete_gpus)
@CLOSING
@options.output("text", "json", "yaml")
@options.run_dir
@options.state_dir
def show(receipt: str, closing: bool, output: str, run_dir: Path, state_dir: Path) -> int:
    """Show what a signed receipt says, and the signed document: of an id, or the newest of a GPU.

    If the service does not answer, it comes from the ledger in --state-dir, and stderr says so. With --state-dir and
    without --run-dir, the service is not asked: DIR may be a copy, of any node.
    """
    receipts = importlib.import_module("autoclave.cli.signed_receipts")
    service = None if options.names_a_copy() else run_dir
    code: int = receipts.show(receipt, output, service, paths.ledger(state_dir), _kind(closing))
    return code


@receipt.command(context_settings=ENVIRONMENT)
@click.argument("receipt", metavar="ID|GPU", shell_complete=options.complete_gpus)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@CLOSING
@options.state_dir
def export(receipt: str, folder: Path, closing: bool, state_dir: Path) -> int:
    """Write a signed receipt and its proof for somebody who verifies them, of an id, or the newest of a GPU.

    The document is the one that the container of the hand-over has found. The proof ends in the newest checkpoint that
    the service has signed; if that is missing or older than the receipt, nothing is written. The files come into a
    directory in DIR that is called after the hand-over, and is printed. Other users must not be able to write to it. It
    needs the rights of the service.
    """
    receipts = importlib.import_module("autoclave.cli.signed_receipts")
    code: int = receipts.export(receipt, folder, state_dir, _kind(closing))
    return code


@receipt.command(context_settings=ENVIRONMENT)
@click.option("--rotate", is_flag=True, envvar="AUTOCLAVE_ROTATE", help="Make the key that the next start takes.")
@options.output("pem", "vkey", "json", "yaml")
@options.node_name
@options.state_dir
def key(rotate: bool, output: str, node_name: str, state_dir: Path) -> int:
    """Show the public key that signs this node's receipts. It needs the rights of the service.

    Give it to those who verify receipts. With --rotate, make the next key and show that one: the service takes it at
    its next start, and notes in the ledger which key follows which, signed by both.
    """
    receipts = importlib.import_module("autoclave.cli.signed_receipts")
    code: int = receipts.show_key(state_dir, node_name or platform.node(), output, rotate=rotate)
    return code
