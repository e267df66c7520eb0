"""``autoclave doctor``: is this node able to keep the promise? Looks at everything first, then judges.

Looking changes nothing: files are read, sockets are connected to and left. ``scrubber.core.diagnosis`` judges.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from plugin.registration import sockets
from policies import units
from scrubber.cli import document, failure, options, service_call, table
from scrubber.core import views
from scrubber.core.diagnosis import base, roster
from scrubber.core.diagnosis.base import CheckFault, Finding, Level
from scrubber.cuda import warmth
from scrubber.ground import paths
from scrubber.ground.errors import AutoclaveError, Unreachable
from scrubber.node import checkpoint, container_toolkit, kernellog, kubelet_devices, posture, process_facts, safe_read

HEADERS = ("LEVEL", "CHECK", "FINDING")
PROC = Path("/proc")  # of whoever looks: the processes of the host show in no directory that is mounted
RIVALS = "nvidia"  # how the sockets of NVIDIA's own plugins, and of those made from them, are called
# Any other error says nothing of who listens: SELinux or a mode forbids us to ask, or too many others ask just now.
DEAD = (ConnectionRefusedError, FileNotFoundError, NotADirectoryError)
AGAIN = 2.0  # seconds between two looks of who waits
PATIENCE = 10.0  # seconds for a service that listens and is slow


@click.command(context_settings=options.ENVIRONMENT)
@options.output("table", "json", "yaml")
@options.run_dir
@click.option(
    "--kubelet-dir",
    type=options.DIRECTORY,
    default=paths.KUBELET_DIR,
    show_default=True,
    help="Where the kubelet keeps its socket and its checkpoint.",
)
@click.option(
    "--host-root",
    type=options.DIRECTORY,
    default="/",
    show_default=True,
    help="Where the host's /etc, /proc/driver, /run, /sys, /usr and /var are seen.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(roster.NAMES),
    metavar="NAME",
    help="Tell only this finding, and judge by it; may be given again.",
)
@click.option(
    "--cdi-kind",
    default="",
    metavar="VENDOR/CLASS",
    help="The plugin will call devices by these names: without a CDI specification of them the node is broken.",
)
@click.option(
    "--wait",
    type=options.Parsed("duration", units.parse_duration),
    default="0s",
    show_default=True,
    help="As long as something is broken look again, for this time, and tell what has changed.",
)
def command(
    output: str, run_dir: Path, kubelet_dir: Path, host_root: Path, only: tuple[str, ...], cdi_kind: str, wait: float
) -> int:
    """Say whether this node can keep the promise; each finding with its remedy.

    Looks at the scrub service, its policy and its GPUs, at the driver and what hands GPUs to containers, at the node,
    the kubelet and the device plugin, and changes nothing. Run it as the user that runs the service, and where that
    runs. Exit code 1 when something is broken; a service that does not answer is, and so is a report without a finding.
    """

    def look() -> tuple[Finding, ...]:
        facts = gather(run_dir.absolute(), kubelet_dir.absolute(), host_root.absolute(), cdi_kind)
        return tuple(finding for finding in roster.judge(facts) if not only or finding.name in only)

    findings = _until_well(look, output, wait) if wait else look()
    _tell(findings, output)
    broken = sum(finding.level is Level.BROKEN for finding in findings)
    if broken:
        click.echo(f"autoclave: {broken} of {len(findings)} findings are broken; each says what to do", err=True)
    return failure.NOT_CLEAN if roster.worst(findings) is Level.BROKEN else 0


def _until_well(look: Callable[[], tuple[Finding, ...]], output: str, wait: float) -> tuple[Finding, ...]:
    """The findings once nothing is broken, or when the time is over. A table is told at each change, for a log."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the first process of a container does not end by itself
    until, told = time.monotonic() + wait, None
    while True:
        findings = look()
        if roster.worst(findings) is not Level.BROKEN or time.monotonic() >= until:
            return findings
        if findings != told and output == "table":
            _tell(findings, output)
            click.echo(f"autoclave: looking again for {units.format_duration(wait)} at most", err=True)
        told = findings
        time.sleep(min(AGAIN, max(0.0, until - time.monotonic())))


def _tell(findings: Sequence[Finding], output: str) -> None:
    if output == "table":
        table.show(HEADERS, rows(findings))
    else:
        document.emit(report(findings), output)


def gather(run_dir: Path, kubelet_dir: Path, host_root: Path, cdi_kind: str = "") -> base.NodeFacts:
    """Everything that is judged, seen once."""
    answer = _answer(run_dir)
    return base.NodeFacts(
        answer=answer,
        door=_socket(run_dir / "scrubber.sock"),
        run_dir=_directory(run_dir, links=False),  # as the service does: a link could be led elsewhere
        kubelet_dir=_directory(kubelet_dir, links=True),
        kubelet=_socket(kubelet_dir / "kubelet.sock"),
        checkpoint=_checkpoint(kubelet_dir),
        plugin=_plugins(kubelet_dir / sockets.SUBDIRECTORY),
        posture=_posture(answer, run_dir, kubelet_dir, host_root),
        cdi_kind=cdi_kind,
        now=time.time(),  # last: what was asked for took its time
    )


def report(findings: Sequence[Finding]) -> dict[str, object]:
    """The stable form: the level of the whole, and every finding."""
    told = [
        {"name": it.name, "level": it.level.value, "text": _printable(it.text), "remedy": _printable(it.remedy)}
        for it in findings
    ]
    return document.single("DoctorReport", {"level": roster.worst(findings).value, "findings": told})


def rows(findings: Sequence[Finding]) -> list[list[str]]:
    """One row a finding, its remedy in the same sentence: a table gives way in its last column only."""
    sentences = [f"{it.text}; {it.remedy}" if it.remedy else it.text for it in findings]
    return [[it.level.value, it.name, _printable(said)] for it, said in zip(findings, sentences, strict=True)]


def _printable(text: str) -> str:
    """What is told quotes names of files and devices, which may hold what no terminal and no file can take."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def _answer(run_dir: Path) -> views.Status | AutoclaveError:
    """No answer is a finding like any other: the rest matters most then.

    A connection is given up soon, and on a busy node too soon to say that nobody is there: as long as somebody listens,
    he is asked again.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return service_call.ask(run_dir, lambda admin: admin.status())
        except Unreachable as error:
            if sockets.knock(paths.admin_socket(run_dir)) is not None or time.monotonic() > until:
                return error
        except AutoclaveError as error:
            return error


def _directory(path: Path, *, links: bool) -> base.Directory:
    try:
        found = path.stat(follow_symlinks=links)
    except OSError as error:
        return base.Directory(str(path), safe_read.fault(error))
    if not stat.S_ISDIR(found.st_mode):
        return base.Directory(str(path), CheckFault("it is no directory"))
    private = stat.S_IMODE(found.st_mode) & 0o077 == 0
    return base.Directory(str(path), private=private, ours=found.st_uid == os.geteuid())


def _socket(path: Path) -> base.Socket:
    refused = sockets.knock(path)
    if refused is None:
        return base.Socket(str(path))
    return base.Socket(str(path), replace(safe_read.fault(refused), dead=isinstance(refused, DEAD)))


def _plugins(directory: Path, prefix: str = "") -> base.Sockets:
    """The sockets of plugins; those of the kubelet itself and of other vendors have other names."""
    found = safe_read.names(directory)
    if isinstance(found, CheckFault):
        return base.Sockets(str(directory), fault=found)
    ours = (name for name in found if name.lower().startswith(prefix) and name.endswith(".sock"))
    return base.Sockets(str(directory), tuple(_socket(directory / name) for name in ours))


def _posture(answer: views.Status | AutoclaveError, run_dir: Path, kubelet_dir: Path, root: Path) -> base.Posture:
    return base.Posture(
        driver=posture.driver(root),
        libraries=posture.libraries(root),
        options=posture.options(root),
        shared_with_guests=posture.shared_with_guests(root),
        cupy=base.Python(_printable(sys.executable), warmth.missing() or ""),
        mps=process_facts.mps(PROC),
        persistenced=posture.persistenced(root),
        toolkit=container_toolkit.toolkit(root),
        cdi=container_toolkit.cdi(root),
        cgroups=posture.cgroups(root),
        sees_all=process_facts.sees_all(PROC),
        service=process_facts.server(paths.admin_socket(run_dir), PROC),
        room=posture.room(Path(answer.service.state_dir)) if isinstance(answer, views.Status) else None,
        kubelet_dir_writable=os.access(kubelet_dir, os.W_OK | os.X_OK),
        rivals=_plugins(kubelet_dir, RIVALS),
        registered=kubelet_devices.devices(kubelet_dir),
        kernel_log=kernellog.unreadable(root / "dev/kmsg"),
    )


def _checkpoint(kubelet_dir: Path) -> base.Checkpoint:
    try:
        return base.Checkpoint(checkpoint.owners(kubelet_dir))
    except checkpoint.CheckpointError as error:
        cause = error.__cause__
        fault = safe_read.fault(cause) if isinstance(cause, OSError) else CheckFault("")
        return base.Checkpoint(fault=replace(fault, text=str(error)))
