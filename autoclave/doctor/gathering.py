"""Gathers the facts of this node for ``autoclave doctor``: it reads files, connects to sockets, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from autoclave.doctor.facts import container_toolkit, create_gate, posture, process_facts, safe_read
from autoclave.doctor.node_facts import NVIDIA, CheckFault, Directory, LastError, NodeFacts, Python, Socket, Sockets
from ground import paths, unix_sockets
from ground.errors import AutoclaveError, Unreachable, joined
from plugin.cluster import credentials, reporter
from plugin.cluster.credentials import Unusable
from plugin.cluster.report_choice import ReportChoice, Reports
from plugin.cluster.retry_loop import Failure
from plugin.dra import resource_slices
from plugin.dra.resource_slices import Pool
from plugin.registration import sockets
from scrub_api import views
from scrubber.cuda import cupy_loading, images
from scrubber.node import assignments
from scrubber.receipts import key
from scrubber.receipts.signer import ReceiptError

PROC = Path("/proc")  # of this process: no mounted directory shows the processes of the host
RIVALS = "nvidia"  # prefix of the sockets of NVIDIA's plugins and their forks
# Any other error does not say that no process listens: SELinux, a file mode or a full backlog may refuse us.
DEAD = (ConnectionRefusedError, FileNotFoundError, NotADirectoryError)
API_WITHIN = 5.0  # seconds for a call of the API server
PATIENCE = 10.0  # seconds to wait for a service that listens and is slow

Ask = Callable[[Path], views.Status]


def gather(
    run_dir: Path, kubelet_dir: Path, host_root: Path, cdi_kind: str = "", driver: str = "", *, ask: Ask
) -> NodeFacts:
    """All facts that the checks need, gathered once. ``ask`` asks the service for its status."""
    answer = _answer(run_dir, ask)
    admin = paths.admin_socket(run_dir)
    status = answer if isinstance(answer, views.Status) else None
    gate = status.service.gate_specification if status is not None else ""
    guarded = status.devices if status is not None and status.service.backend == NVIDIA else ()
    addresses = {device.device: device.pci_address for device in guarded}
    return NodeFacts(
        answer=answer,
        last_error=_last_error(paths.last_error(run_dir)),
        scrubber_socket=_socket(run_dir / "scrubber.sock"),
        run_dir=_directory(run_dir, links=False),  # as the service does: a link can be redirected
        process=process_facts.server(admin, PROC),
        receipt_key=_receipt_key(Path(status.service.state_dir)) if status is not None else None,
        room=posture.room(Path(status.service.state_dir)) if status is not None else None,
        create_gate=create_gate.look(Path(gate), host_root) if gate else None,
        driver=posture.driver(host_root),
        libraries=posture.libraries(host_root),
        options=posture.options(host_root),
        shared_with_guests=posture.shared_with_guests(host_root),
        cupy=Python(sys.executable, cupy_loading.missing() or "", cupy_loading.installed()),
        kernels=bool(images.present()),
        mps=process_facts.mps(PROC),
        persistenced=posture.persistenced(host_root),
        persistence_kept=status is not None
        and posture.persistence_kept(
            Path(status.service.state_dir) / "settings", [device.device for device in guarded if not device.mig]
        ),
        toolkit=container_toolkit.toolkit(host_root),
        cdi=container_toolkit.cdi(host_root),
        cdi_kind=cdi_kind,
        numa_gpus=posture.numa_gpus(host_root),
        on_bus=posture.on_bus(host_root),
        on_ec2=posture.on_ec2(host_root),
        on_kubernetes=paths.of_kubernetes(),
        openers=process_facts.openers(host_root, PROC, addresses, process_facts.pids(admin)),
        cgroups=posture.cgroups(host_root),
        sees_all=process_facts.sees_all(PROC),
        unreadable=process_facts.unreadable(PROC),
        kernel_log=posture.kernel_log(host_root),
        file_watches=posture.file_watches(),
        kubelet_dir=_directory(kubelet_dir, links=True),
        kubelet_dir_writable=os.access(kubelet_dir, os.W_OK | os.X_OK),
        kubelet=_socket(kubelet_dir / "kubelet.sock"),
        plugin=_plugins(kubelet_dir / sockets.SUBDIRECTORY),
        rivals=_plugins(kubelet_dir, RIVALS),
        in_front=_in_front(kubelet_dir),
        checkpoint=_checkpoint(kubelet_dir),
        registered=_registered(kubelet_dir),
        missing_gates=_missing_gates(driver) if driver else None,
        now=time.time(),  # last, because gathering takes time
    )


def _receipt_key(state_dir: Path) -> str | CheckFault | None:
    try:
        return key.read_key(state_dir).key_id if key.can_sign() else None
    except ReceiptError as error:
        return CheckFault(error.message, remedy=joined(*error.remedies))


def _missing_gates(driver: str) -> frozenset[str] | CheckFault:
    """Give the API server a slice with a taint, as a dry run, and see whether it keeps the taint."""
    node = os.environ.get("NODE_NAME", "")
    choice = ReportChoice(Reports.ON, node)
    file = credentials.find(choice, os.environ)
    if file is None or not node:
        return CheckFault("there are no credentials, or NODE_NAME is not set")

    async def ask() -> frozenset[str]:
        server = reporter.connect(file, node, API_WITHIN)
        try:
            tried = resource_slices.with_a_taint(Pool(driver, node, (await server.read()).uid))
            kept = resource_slices.has_taint(await server.apply_slice(tried, dry_run=True))
            return frozenset() if kept else frozenset({resource_slices.TAINTS_GATE})
        finally:
            await server.close()

    try:
        return asyncio.run(ask())
    except Unusable as error:
        return CheckFault(str(error))
    except Failure as failure:
        return CheckFault(failure.message)


def _answer(run_dir: Path, ask: Ask) -> views.Status | AutoclaveError:
    """The status, or the error instead of it: the other findings matter most when the service does not answer.

    A connection attempt gives up soon. On a busy node that can be too soon, so a service that listens is asked again.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return ask(run_dir)
        except Unreachable as error:
            if unix_sockets.connect_error(paths.admin_socket(run_dir)) is not None or time.monotonic() > until:
                return error
        except AutoclaveError as error:
            return error


def _directory(path: Path, *, links: bool) -> Directory:
    try:
        status = path.stat(follow_symlinks=links)
    except OSError as error:
        return Directory(str(path), safe_read.fault(error))
    if not stat.S_ISDIR(status.st_mode):
        return Directory(str(path), CheckFault("it is not a directory"))
    private = stat.S_IMODE(status.st_mode) & 0o077 == 0
    return Directory(str(path), private=private, ours=status.st_uid == os.geteuid())


def _last_error(path: Path) -> LastError | None:
    text = safe_read.text(path)
    if not isinstance(text, str):
        return None
    try:
        at = path.stat().st_mtime
    except FileNotFoundError:  # the service has just come back
        return None
    try:
        left = json.loads(text)
    except ValueError:  # of an older service
        return LastError(text.strip(), at)
    return LastError(left["message"], at, joined(*left.get("remedies", ())))


def _socket(path: Path) -> Socket:
    refused = unix_sockets.connect_error(path)
    if refused is None:
        return Socket(str(path))
    return Socket(str(path), replace(safe_read.fault(refused), dead=isinstance(refused, DEAD)))


def _plugins(directory: Path, prefix: str = "") -> Sockets:
    """The sockets of plugins whose names start with ``prefix``."""
    names = safe_read.names(directory)
    if isinstance(names, CheckFault):
        return Sockets(str(directory), fault=names)
    ours = (name for name in names if name.lower().startswith(prefix) and name.endswith(".sock"))
    return Sockets(str(directory), tuple(_socket(directory / name) for name in ours))


def _in_front(kubelet_dir: Path) -> str:
    """The ``kubelet.sock`` in a directory below the kubelet's, on which a plugin answers in place of the kubelet."""
    names = safe_read.names(kubelet_dir)
    below = [] if isinstance(names, CheckFault) else [kubelet_dir / name / "kubelet.sock" for name in names]
    return next((str(path) for path in below if unix_sockets.connect_error(path) is None), "")


def _checkpoint(kubelet_dir: Path) -> Mapping[str, frozenset[str]] | CheckFault:
    try:
        return {device: assigned.pods for device, assigned in assignments.by_device(kubelet_dir).items()}
    except assignments.AssignmentsError as error:
        cause = error.__cause__
        fault = safe_read.fault(cause) if isinstance(cause, OSError) else CheckFault("")
        return replace(fault, text=str(error))


def _registered(directory: Path) -> dict[str, frozenset[str]] | CheckFault:
    """The healthy devices of each resource. The kubelet rewrites the file at each list that a plugin sends."""
    text = safe_read.text(directory / assignments.NAME)
    if isinstance(text, CheckFault):
        return text
    try:
        document = json.loads(text)["Data"]["RegisteredDevices"] or {}
        registered = {str(resource): frozenset(ids or ()) for resource, ids in document.items()}  # Go writes [] as null
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return CheckFault(f"it does not have the format of a checkpoint ({error!r})")
    if not all(isinstance(device, str) for ids in registered.values() for device in ids):
        return CheckFault("it does not have the format of a checkpoint (a device id that is not text)")
    return registered
