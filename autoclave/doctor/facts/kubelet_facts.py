"""Facts about the kubelet's directory, its checkpoint, the plugins that serve there, and the API server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from autoclave.doctor.facts import safe_read
from autoclave.doctor.node_facts import CheckFault, Directory, Node, Socket, Sockets, fact
from ground import paths, unix_sockets
from plugin.cluster import credentials, reporter
from plugin.cluster.credentials import Unusable
from plugin.cluster.report_choice import ReportChoice, Reports
from plugin.cluster.retry_loop import Failure
from plugin.dra import resource_slices
from plugin.dra.resource_slices import Pool
from plugin.registration import sockets
from scrubber.node import assignments

if TYPE_CHECKING:
    from plugin.cluster.apiserver import ApiServer

A = TypeVar("A")
RIVALS = "nvidia"  # prefix of the sockets of NVIDIA's plugins and their forks
API_WITHIN = 5.0  # seconds for a call of the API server


@fact
def kubelet_dir(node: Node) -> Directory:
    """The kubelet's directory."""
    return safe_read.directory(node.kubelet_dir, links=True)


def has_kubelet_dir(node: Node) -> bool:
    """Whether to look into the kubelet's directory: its absence has a finding of its own."""
    return kubelet_dir(node).fault is None


@fact
def kubelet_dir_writable(node: Node) -> bool:
    """Whether this process may make files in the kubelet's directory."""
    return os.access(node.kubelet_dir, os.W_OK | os.X_OK)


@fact
def kubelet(node: Node) -> Socket:
    """The socket of the kubelet."""
    return safe_read.socket(node.kubelet_dir / paths.KUBELET_SOCKET)


@fact
def plugin(node: Node) -> Sockets:
    """The sockets of our plugin."""
    return _plugins(node.kubelet_dir / sockets.SUBDIRECTORY)


@fact
def rivals(node: Node) -> Sockets:
    """The sockets of other plugins for NVIDIA GPUs."""
    return _plugins(node.kubelet_dir, RIVALS)


def _plugins(directory: Path, prefix: str = "") -> Sockets:
    """The sockets of plugins whose names start with ``prefix``."""
    names = safe_read.names(directory)
    if isinstance(names, CheckFault):
        return Sockets(str(directory), fault=names)
    ours = (name for name in names if name.lower().startswith(prefix) and name.endswith(".sock"))
    return Sockets(str(directory), tuple(safe_read.socket(directory / name) for name in ours))


@fact
def in_front(node: Node) -> str:
    """The ``kubelet.sock`` in a directory below the kubelet's, on which a plugin answers in place of the kubelet."""
    names = safe_read.names(node.kubelet_dir)
    below = [] if isinstance(names, CheckFault) else [node.kubelet_dir / name / paths.KUBELET_SOCKET for name in names]
    return next((str(path) for path in below if unix_sockets.connect_error(path) is None), "")


@fact
def checkpoint(node: Node) -> Mapping[str, frozenset[str]] | CheckFault:
    """The pods of each device, as the kubelet knows them."""
    try:
        return {device: assigned.pods for device, assigned in assignments.by_device(node.kubelet_dir).items()}
    except assignments.AssignmentsError as error:
        cause = error.__cause__
        fault = safe_read.fault(cause) if isinstance(cause, OSError) else CheckFault("")
        return replace(fault, text=str(error))


@fact
def registered(node: Node) -> Mapping[str, frozenset[str]] | CheckFault:
    """The healthy devices of each resource. The kubelet rewrites the file at each list that a plugin sends."""
    text = safe_read.text(node.kubelet_dir / assignments.NAME)
    if isinstance(text, CheckFault):
        return text
    try:
        document = json.loads(text)["Data"]["RegisteredDevices"] or {}
        devices = {str(resource): frozenset(ids or ()) for resource, ids in document.items()}  # Go writes [] as null
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return CheckFault(f"it does not have the format of a checkpoint ({error!r})")
    if not all(isinstance(device, str) for ids in devices.values() for device in ids):
        return CheckFault("it does not have the format of a checkpoint (a device id that is not text)")
    return devices


@fact
def missing_gates(node: Node) -> frozenset[str] | CheckFault | None:
    """The feature gates that the API server lacks; None without a DRA driver.

    It is given a slice with a taint, as a dry run: it keeps the taint only if it has the gate.
    """

    async def missing(server: ApiServer, name: str) -> frozenset[str]:
        tried = resource_slices.with_a_taint(Pool(node.driver_name, name, (await server.read()).uid))
        kept = resource_slices.has_taint(await server.apply_slice(tried, dry_run=True))
        return frozenset() if kept else frozenset({resource_slices.TAINTS_GATE})

    return _of_cluster(node, missing)


@fact
def unprepared_slices(node: Node) -> tuple[str, ...] | CheckFault | None:
    """The ResourceSlices of this node whose devices the kubelet does not prepare; None without a DRA driver."""

    async def unprepared(server: ApiServer, _name: str) -> tuple[str, ...]:
        listed = await server.slices_of(node.driver_name)
        return tuple(item["metadata"]["name"] for item in listed if resource_slices.skips_prepare(item))

    return _of_cluster(node, unprepared)


def _of_cluster(node: Node, ask: Callable[[ApiServer, str], Awaitable[A]]) -> A | CheckFault | None:
    """What the API server says to the DRA driver of this node; None without one."""
    if not node.driver_name:
        return None
    name = os.environ.get("NODE_NAME", "")
    file = credentials.find(ReportChoice(Reports.ON, name), os.environ)
    if file is None or not name:
        return CheckFault("there are no credentials, or NODE_NAME is not set")

    async def asked() -> A:
        server = reporter.connect(file, name, API_WITHIN)
        try:
            return await ask(server, name)
        finally:
            await server.close()

    try:
        return asyncio.run(asked())
    except Unusable as error:
        return CheckFault(str(error))
    except Failure as failure:
        return CheckFault(failure.message)
