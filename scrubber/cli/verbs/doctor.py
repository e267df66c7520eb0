"""``autoclave doctor``: checks whether this node can prove GPUs clean. Gathers facts first, then judges them.

Gathering changes nothing: it reads files and connects to sockets. ``scrubber.core.diagnosis`` judges the facts.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

import click

from plugin.cluster import credentials
from plugin.cluster.base import Failure, Unusable
from plugin.cluster.credentials import ReportChoice, Reports
from plugin.dra import slices
from plugin.dra.slices import Pool
from plugin.registration import sockets
from policies import units
from scrubber.cli import document, exit_codes, options, service_call, table
from scrubber.core import views
from scrubber.core.diagnosis import base, roster
from scrubber.core.diagnosis.base import CheckFault, Finding, Level
from scrubber.core.model import Holder
from scrubber.cuda import warmth
from scrubber.ground import paths, unix_sockets
from scrubber.ground.errors import AutoclaveError, Unreachable
from scrubber.node import (
    checkpoint,
    container_toolkit,
    gpu_openers,
    kernellog,
    kubelet_devices,
    posture,
    process_facts,
    safe_read,
)

HEADERS = ("LEVEL", "CHECK", "FINDING")
PROC = Path("/proc")  # of this process: no mounted directory shows the processes of the host
RIVALS = "nvidia"  # prefix of the sockets of NVIDIA's plugins and their forks
# Any other error does not say that no process listens: SELinux, a file mode or a full backlog may refuse us.
DEAD = (ConnectionRefusedError, FileNotFoundError, NotADirectoryError)
API_WITHIN = 5.0  # seconds for a call of the API server
AGAIN = 2.0  # seconds between two checks with --wait
PATIENCE = 10.0  # seconds to wait for a service that listens and is slow


class Chosen(TypedDict):
    """The flags that select findings."""

    only: tuple[str, ...]
    skip: tuple[str, ...]
    without_kubernetes: bool


@click.command(context_settings=options.ENVIRONMENT)
@options.output("table", "json", "yaml")
@options.run_dir
@click.option(
    "--kubelet-dir",
    type=options.DIRECTORY,
    default=paths.KUBELET_DIR,
    help="Directory with the socket and the checkpoint of the kubelet.",
)
@click.option(
    "--host-root",
    type=options.DIRECTORY,
    default="/",
    help="Where this process sees the host's /etc, /proc/driver, /run, /sys, /usr and /var.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(roster.NAMES),
    metavar="NAME",
    help="Report and judge only this finding; can be repeated.",
)
@click.option(
    "--skip",
    multiple=True,
    type=click.Choice(roster.NAMES),
    metavar="NAME",
    help="Leave this finding out of report and judgement; can be repeated.",
)
@click.option(
    "--without-kubernetes",
    is_flag=True,
    help="Skip the findings about kubelet, plugin and pods, on a node without Kubernetes.",
)
@click.option(
    "--cdi-kind",
    default="",
    show_default=False,
    metavar="VENDOR/CLASS",
    help="The CDI kind that the plugin uses: a missing CDI specification of this kind is broken.",
)
@click.option(
    "--driver-name",
    default="",
    show_default=False,
    metavar="DOMAIN",
    help="The name of the DRA driver: find feature gates that are off, with the driver's credentials and NODE_NAME.",
)
@click.option(
    "--wait",
    type=options.Parsed("duration", units.parse_duration),
    default="0s",
    help="While a finding is broken, check again for this time and report changes.",
)
def command(
    output: str,
    run_dir: Path,
    kubelet_dir: Path,
    host_root: Path,
    cdi_kind: str,
    driver_name: str,
    wait: float,
    **chosen: Unpack[Chosen],
) -> int:
    """Check whether this node can prove GPUs clean; each finding has a remedy.

    Checks the scrub service, its policy and its GPUs, the driver, the container toolkit, the node, the kubelet and the
    device plugin, and changes nothing. Run it as the user of the service and on its node (or in its container). Exit
    code 1 when a finding is broken, or when no finding is left.
    """
    wanted = frozenset(chosen["only"] or roster.NAMES).difference(chosen["skip"])
    wanted -= roster.OF_KUBERNETES if chosen["without_kubernetes"] else frozenset()

    def look() -> tuple[Finding, ...]:
        facts = gather(run_dir.absolute(), kubelet_dir.absolute(), host_root.absolute(), cdi_kind, driver_name)
        return tuple(finding for finding in roster.judge(facts) if finding.name in wanted)

    findings = _until_not_broken(look, output, wait) if wait else look()
    _print(findings, output)
    if not findings:
        click.echo("autoclave: nothing was checked: no finding is left, which counts as broken", err=True)
    broken = sum(finding.level is Level.BROKEN for finding in findings)
    if broken:
        click.echo(f"autoclave: {broken} of {len(findings)} findings are broken; each names its remedy", err=True)
    return exit_codes.NOT_CLEAN if roster.worst(findings) is Level.BROKEN else 0


def _until_not_broken(look: Callable[[], tuple[Finding, ...]], output: str, wait: float) -> tuple[Finding, ...]:
    """The findings once none is broken, or when the time is over. Prints a table at each change, for a log."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as PID 1 of a container, Python ignores SIGTERM
    until, printed = time.monotonic() + wait, None
    while True:
        findings = look()
        if roster.worst(findings) is not Level.BROKEN or time.monotonic() >= until:
            return findings
        if findings != printed and output == "table":
            _print(findings, output)
            click.echo(f"autoclave: checking again for at most {units.format_duration(wait)}", err=True)
        printed = findings
        time.sleep(min(AGAIN, max(0.0, until - time.monotonic())))


def _print(findings: Sequence[Finding], output: str) -> None:
    if output == "table":
        table.show(HEADERS, rows(findings))
    else:
        document.emit(report(findings), output)


def gather(run_dir: Path, kubelet_dir: Path, host_root: Path, cdi_kind: str = "", driver: str = "") -> base.NodeFacts:
    """All facts that the checks need, gathered once."""
    answer = _answer(run_dir)
    return base.NodeFacts(
        answer=answer,
        scrubber_socket=_socket(run_dir / "scrubber.sock"),
        run_dir=_directory(run_dir, links=False),  # as the service does: a link can be redirected
        kubelet_dir=_directory(kubelet_dir, links=True),
        kubelet=_socket(kubelet_dir / "kubelet.sock"),
        checkpoint=_checkpoint(kubelet_dir),
        plugin=_plugins(kubelet_dir / sockets.SUBDIRECTORY),
        posture=_posture(answer, run_dir, kubelet_dir, host_root),
        cdi_kind=cdi_kind,
        slices=_slice_fields(driver) if driver else None,
        now=time.time(),  # last, because gathering takes time
    )


def _slice_fields(driver: str) -> base.SliceFields:
    """Give the API server a slice with every field, as a dry run, and see what it keeps."""
    node = os.environ.get("NODE_NAME", "")
    choice = ReportChoice(Reports.ON, node)
    found = credentials.find(choice, os.environ)
    if found is None or not node:
        return base.SliceFields(fault="there are no credentials, or NODE_NAME is not set")

    async def ask() -> frozenset[str]:
        server = importlib.import_module("plugin.dra.apiserver").connect(found, node, API_WITHIN)
        try:
            tried = slices.with_all_fields(Pool(driver, node, await server.node_uid()))
            return slices.missing_gates(await server.apply_slice(tried, dry_run=True))
        finally:
            await server.close()

    try:
        return base.SliceFields(missing=asyncio.run(ask()))
    except (ImportError, Unusable) as error:
        return base.SliceFields(fault=str(error))
    except Failure as failure:
        return base.SliceFields(fault=failure.message)


def report(findings: Sequence[Finding]) -> dict[str, object]:
    """The stable JSON form: the overall level and every finding."""
    items = [
        {"name": it.name, "level": it.level.value, "text": _printable(it.text), "remedy": _printable(it.remedy)}
        for it in findings
    ]
    return document.single("DoctorReport", {"level": roster.worst(findings).value, "findings": items})


def rows(findings: Sequence[Finding]) -> list[list[str]]:
    """One row for each finding. The remedy is in the last column, the only one that wraps."""
    sentences = [f"{it.text}; {it.remedy}" if it.remedy else it.text for it in findings]
    return [[it.level.value, it.name, _printable(text)] for it, text in zip(findings, sentences, strict=True)]


def _printable(text: str) -> str:
    """The text with unprintable characters replaced: findings quote names, which can hold any character."""
    return "".join(it if it.isprintable() or it == "\n" else "?" for it in text)


def _answer(run_dir: Path) -> views.Status | AutoclaveError:
    """The status, or the error instead of it: the other findings matter most when the service does not answer.

    A connection attempt gives up soon. On a busy node that can be too soon, so a service that listens is asked again.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return service_call.ask_now(run_dir, lambda admin: admin.status())
        except Unreachable as error:
            if unix_sockets.connect_error(paths.admin_socket(run_dir)) is not None or time.monotonic() > until:
                return error
        except AutoclaveError as error:
            return error


def _directory(path: Path, *, links: bool) -> base.Directory:
    try:
        found = path.stat(follow_symlinks=links)
    except OSError as error:
        return base.Directory(str(path), safe_read.fault(error))
    if not stat.S_ISDIR(found.st_mode):
        return base.Directory(str(path), CheckFault("it is not a directory"))
    private = stat.S_IMODE(found.st_mode) & 0o077 == 0
    return base.Directory(str(path), private=private, ours=found.st_uid == os.geteuid())


def _socket(path: Path) -> base.Socket:
    refused = unix_sockets.connect_error(path)
    if refused is None:
        return base.Socket(str(path))
    return base.Socket(str(path), replace(safe_read.fault(refused), dead=isinstance(refused, DEAD)))


def _plugins(directory: Path, prefix: str = "") -> base.Sockets:
    """The sockets of plugins whose names start with ``prefix``."""
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
        amdgpu=posture.amdgpu(root),
        openers=_openers(answer, run_dir, root),
    )


def _openers(answer: views.Status | AutoclaveError, run_dir: Path, root: Path) -> Mapping[str, tuple[Holder, ...]]:
    if not isinstance(answer, views.Status) or answer.service.backend != base.NVIDIA:
        return {}
    addresses = {device.device: device.pci_address for device in answer.devices}
    return gpu_openers.openers(root, PROC, addresses, process_facts.pids(paths.admin_socket(run_dir)))


def _checkpoint(kubelet_dir: Path) -> base.Checkpoint:
    try:
        return base.Checkpoint({device: it.pods for device, it in checkpoint.assignments(kubelet_dir).items()})
    except checkpoint.CheckpointError as error:
        cause = error.__cause__
        fault = safe_read.fault(cause) if isinstance(cause, OSError) else CheckFault("")
        return base.Checkpoint(fault=replace(fault, text=str(error)))
