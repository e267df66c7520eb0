"""``autoclave doctor``: is this node able to keep the promise? Looks at everything first, then judges.

Looking changes nothing: files are read, sockets are connected to and left. ``scrubber.core.diagnosis`` judges.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from plugin.registration import sockets
from scrubber import config
from scrubber.cli import asking, document, failure, options, table
from scrubber.core import view
from scrubber.core.diagnosis import base, roster
from scrubber.core.diagnosis.base import Fault, Finding, Level
from scrubber.errors import AutoclaveError, Unreachable
from scrubber.node import checkpoint

HEADERS = ("LEVEL", "CHECK", "FINDING")
PATIENCE = 10.0  # seconds for a service that listens and is slow


@click.command(context_settings=options.ENVIRONMENT)
@options.output("table", "json", "yaml")
@options.run_dir
@click.option(
    "--kubelet-dir",
    type=options.DIRECTORY,
    default=config.KUBELET_DIR,
    show_default=True,
    help="Where the kubelet keeps its socket and its checkpoint.",
)
def command(output: str, run_dir: Path, kubelet_dir: Path) -> int:
    """Say whether this node can keep the promise; each finding with its remedy.

    Looks at the scrub service, its policy and its GPUs, at the kubelet and at the device plugin, and changes nothing.
    Run it as the user that runs the service. Exit code 1 when something is broken; a service that does not answer is.
    """
    findings = roster.judge(gather(run_dir.absolute(), kubelet_dir.absolute()))
    if output == "table":
        table.show(HEADERS, rows(findings))
    else:
        document.emit(report(findings), output)
    broken = sum(finding.level is Level.BROKEN for finding in findings)
    if broken:
        click.echo(f"autoclave: {broken} of {len(findings)} findings are broken; each says what to do", err=True)
    return failure.NOT_CLEAN if roster.worst(findings) is Level.BROKEN else 0


def gather(run_dir: Path, kubelet_dir: Path) -> base.Facts:
    """Everything that is judged, seen once."""
    return base.Facts(
        answer=_answer(run_dir),
        door=_socket(run_dir / "scrubber.sock"),
        run_dir=_directory(run_dir, links=False),  # as the service does: a link could be led elsewhere
        kubelet_dir=_directory(kubelet_dir, links=True),
        kubelet=_socket(kubelet_dir / "kubelet.sock"),
        checkpoint=_checkpoint(kubelet_dir),
        plugin=_plugin(kubelet_dir / sockets.SUBDIRECTORY),
        now=time.time(),  # last: what was asked for took its time
    )


def report(findings: Sequence[Finding]) -> dict[str, object]:
    """The stable form: the level of the whole, and every finding."""
    told = [{"name": it.name, "level": it.level.value, "text": it.text, "remedy": it.remedy} for it in findings]
    return document.single("DoctorReport", {"level": roster.worst(findings).value, "findings": told})


def rows(findings: Sequence[Finding]) -> list[list[str]]:
    """One row a finding, its remedy in the same sentence: a table gives way in its last column only."""
    return [[it.level.value, it.name, f"{it.text}; {it.remedy}" if it.remedy else it.text] for it in findings]


def _answer(run_dir: Path) -> view.Status | AutoclaveError:
    """No answer is a finding like any other: the rest matters most then.

    A connection is given up soon, and on a busy node too soon to say that nobody is there: as long as somebody listens,
    he is asked again.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return asking.ask(run_dir, lambda admin: admin.status())
        except Unreachable as error:
            if sockets.knock(config.admin_socket(run_dir)) is not None or time.monotonic() > until:
                return error
        except AutoclaveError as error:
            return error


def _directory(path: Path, *, links: bool) -> base.Directory:
    try:
        found = path.stat(follow_symlinks=links)
    except OSError as error:
        return base.Directory(str(path), _fault(error))
    if not stat.S_ISDIR(found.st_mode):
        return base.Directory(str(path), Fault("it is no directory"))
    private = stat.S_IMODE(found.st_mode) & 0o077 == 0
    return base.Directory(str(path), private=private, ours=found.st_uid == os.geteuid())


def _socket(path: Path) -> base.Socket:
    refused = sockets.knock(path)
    return base.Socket(str(path), None if refused is None else _fault(refused))


def _plugin(directory: Path) -> base.Sockets:
    """Listed by ``iterdir``: ``glob`` says of a directory that may not be read that it is empty."""
    try:
        found = sorted(path for path in directory.iterdir() if path.suffix == ".sock")
    except OSError as error:
        return base.Sockets(str(directory), fault=_fault(error))
    return base.Sockets(str(directory), tuple(map(_socket, found)))


def _checkpoint(kubelet_dir: Path) -> base.Checkpoint:
    try:
        return base.Checkpoint(checkpoint.owners(kubelet_dir))
    except checkpoint.CheckpointError as error:
        cause = error.__cause__
        fault = _fault(cause) if isinstance(cause, OSError) else Fault("")
        return base.Checkpoint(fault=replace(fault, text=str(error)))


def _fault(error: OSError) -> Fault:
    text = (error.strerror or str(error)).lower()
    return Fault(text, isinstance(error, FileNotFoundError), isinstance(error, PermissionError))
