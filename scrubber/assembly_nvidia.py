"""Builds the backend of a node with NVIDIA GPUs. ``assembly`` imports this module only when it needs that backend."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from ground import log
from policies import xids
from scrubber.config import BackendChoice, ScrubberConfig
from scrubber.devices.base import DeviceError
from scrubber.devices.blocking_calls import Caller
from scrubber.devices.nvidia import locks
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library
from scrubber.node.kernellog import KernelLog
from scrubber.node.node_containers import Containers

logger = log.get("assembly")

PROC = Path("/proc")
LAST_RESET_WITHIN = 30.0  # seconds that a start waits for the end of a reset that the last service began
OPENS_WITHIN = 120.0  # seconds; the driver sets up its GPUs after that, while the service already answers


def build(config: ScrubberConfig, namespace: int | None) -> Nvidia:
    """The NVIDIA backend of this node; DeviceError when the driver or the library does not answer: both may come later.

    ``namespace`` is the PID namespace that shows all processes of the node, unless it is the first one.
    """
    host, library = Host(config.host_root), Library(sets_up_gpus=True)
    if namespace is not None:
        host = replace(host, pid_namespace=namespace)
    settings = config.state_dir / "settings"
    if not locks.wait(config.state_dir / locks.FOLDER, LAST_RESET_WITHIN):
        logger.warning("a reset that the last service began is still running; starting anyway")
    try:
        why_not = asyncio.run(Caller().ask("driver", lambda: Nvidia.probe(host, library), OPENS_WITHIN))
    except DeviceError as error:
        why_not = str(error)
    if why_not is None:
        containers = Containers(PROC, namespace, config.host_root / "sys/fs/cgroup")
        return Nvidia(host, containers, settings, library, KernelLog(host.dev / "kmsg"), _hits_whole_gpu)
    if config.backend is BackendChoice.AUTO:
        raise DeviceError(f"cannot choose a backend: {why_not}; for simulated GPUs use --backend simulated")
    raise DeviceError(f"cannot use backend {config.backend.value}: {why_not}")


def _hits_whole_gpu(code: int) -> bool:
    """Whether an XID that names one slice concerns the whole GPU. An unknown XID does."""
    row = xids.ROWS.get(code)
    return row is None or row.scope is not xids.XidScope.APP
