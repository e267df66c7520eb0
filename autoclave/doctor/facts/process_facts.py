"""Find processes: the one that serves a socket, with its rights, those of CUDA's MPS, and those with a GPU open."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from autoclave.doctor.facts import safe_read
from autoclave.doctor.node_facts import CheckFault, Node, Process, fact
from ground import paths, unix_sockets
from scrubber.core.model import Holder
from scrubber.devices.nvidia.host import PERSISTENCE_SOCKET
from scrubber.node.node_containers import Containers
from scrubber.node.proc import INITIAL_PID_NAMESPACE
from scrubber.node.processes import Processes

MPS = frozenset({"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"})
_CAPABILITIES = re.compile(r"^CapEff:\s*([0-9a-fA-F]+)$", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)
_RARELY_OPEN = "/dev/full"  # a device node, as those of GPUs are
_WITHIN = 5.0  # seconds: a doctor that finds nothing in time says nothing


@fact
def mps(node: Node) -> tuple[str, ...] | CheckFault:
    """The processes of the multi-process service, by their executable: any process can choose this name."""
    entries = safe_read.names(node.proc)
    if isinstance(entries, CheckFault):
        return entries
    processes: list[str] = []
    hidden: CheckFault | None = None
    for pid in filter(str.isdecimal, entries):
        try:
            program = os.readlink(node.proc / pid / "exe").removesuffix(" (deleted)")  # noqa: PTH115 - the raw text
        except (FileNotFoundError, ProcessLookupError):
            continue  # a kernel thread, or ended
        except OSError as error:
            fault = safe_read.fault(error)
            hidden = hidden or replace(fault, text=f"process {pid} cannot be read: {fault.text}")
            continue
        if program.rpartition("/")[2] in MPS:
            processes.append(f"process {pid}")
    return hidden if hidden is not None and not processes else tuple(processes)


@fact
def unreadable(node: Node) -> CheckFault | None:
    """Why not every process can be read as the service reads it, with the first that cannot."""
    search = Processes(node.proc, Containers(node.proc).of, whole_node=True)
    search.holders({"": (_RARELY_OPEN,)}, within=_WITHIN)
    if search.gave_up:
        seconds, pid = search.slowest()
        return CheckFault(f"{search.named(pid)} took {seconds:.1f} s to read")
    return CheckFault(search.unreadable, denied=True, to_root=os.geteuid() == 0) if search.unreadable else None


@fact
def sees_all(node: Node) -> bool | CheckFault:
    """Whether the doctor sees every process of the node."""
    return _sees_all(node.proc, "self")


def _sees_all(proc: Path, pid: str) -> bool | CheckFault:
    """Whether a process is in the node's own PID namespace, which shows all processes."""
    try:
        return (proc / pid / "ns/pid").stat().st_ino == INITIAL_PID_NAMESPACE
    except OSError as error:
        return safe_read.fault(error)


@fact
def process(node: Node) -> Process | CheckFault:
    """The process that serves the operators' socket."""
    return server(paths.admin_socket(node.run_dir), node.proc)


def server(path: Path, proc: Path) -> Process | CheckFault:
    """The process that serves a socket, as the kernel reports it; no request is sent."""
    try:
        pid = unix_sockets.listener(path)
    except OSError as error:
        return safe_read.fault(error)
    if pid == 0:
        return CheckFault("its process is not visible in this PID namespace")
    sees = _sees_all(proc, str(pid))
    status = safe_read.text(proc / str(pid) / "status")
    if isinstance(sees, CheckFault):
        return sees
    if isinstance(status, CheckFault):
        return status
    capabilities = _CAPABILITIES.search(status)
    if capabilities is None:
        return CheckFault(f"{proc / str(pid) / 'status'} shows no capabilities")
    return Process(sees, int(capabilities[1], 16))


@fact
def service_pids(node: Node) -> tuple[int, ...]:
    """The pid of the service; empty if it is not known."""
    return _pids(paths.admin_socket(node.run_dir))


def _pids(path: Path) -> tuple[int, ...]:
    """The pid of the process that serves a socket; empty if it is not known."""
    try:
        pid = unix_sockets.listener(path)
    except OSError:
        return ()
    return (pid,) if pid else ()


@fact
def openers(node: Node, addresses: Mapping[str, str]) -> Mapping[str, tuple[Holder, ...]]:
    """The processes that have each GPU open, by its UUID. ``addresses``: the PCI address of each GPU.

    Without those that close the GPU for a reset: the service with its workers, and the persistence daemon if its
    socket is where the service's NVML looks for it. GPUs whose holders cannot be found are missing.
    """
    root, proc, ours, files = node.host_root, node.proc, service_pids(node), {}
    for uuid, address in addresses.items():
        information = safe_read.text(root / "proc/driver/nvidia/gpus" / address / "information")
        if isinstance(information, str) and (minor := _MINOR.search(information)):
            files[uuid] = (str(root / f"dev/nvidia{minor[1]}"),)
    if not files:
        return {}
    search = Processes(proc, Containers(proc).of, whole_node=False)
    holders_by_gpu = search.holders(files, ours, within=_WITHIN)
    daemon = {pid for own in ours for pid in _pids(proc / str(own) / "root" / PERSISTENCE_SOCKET)}
    return {
        uuid: tuple(holder for holder in holders if holder.pid not in daemon and not search.descends(holder.pid, ours))
        for uuid, holders in holders_by_gpu.items()
        if holders is not None
    }
