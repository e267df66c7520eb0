"""Builds the backend of a node with NVIDIA GPUs. ``app`` loads this module by name, when such a node is asked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from policies import xids
from scrubber.config import BackendChoice as Chosen
from scrubber.config import ScrubberConfig
from scrubber.devices.base import DeviceError
from scrubber.devices.calls import Caller
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library
from scrubber.ground import log
from scrubber.ground.errors import FatalError
from scrubber.node.cgroups import Containers
from scrubber.node.kernellog import KernelLog

logger = log.get("app")

PROC = Path("/proc")
LAST_RESET = 30.0  # seconds for which a start waits for a reset that the last service has left behind
FIRST_ANSWER = 30.0  # seconds that a driver has to answer at all: without persistence it sets its devices up first


def build(config: ScrubberConfig, namespace: int | None) -> Nvidia:
    """What a node has that was not told to simulate."""
    host, library = Host(config.host_root), Library()
    if namespace is not None:
        host = replace(host, pid_namespace=namespace)
    settings = config.state_dir / "settings"
    if not Nvidia.quiet(settings, LAST_RESET):
        logger.warning("a reset that the last service began does not end; the driver is asked beside it")
    try:
        why_not = asyncio.run(Caller().ask("driver", lambda: Nvidia.probe(host, library), FIRST_ANSWER))
    except DeviceError as error:
        why_not = str(error)
    if why_not is None:
        pods = Containers(PROC, namespace)
        return Nvidia(host, pods.of, pods.living, settings, library, KernelLog(host.dev / "kmsg"), _hits_whole_gpu)
    if config.backend is Chosen.AUTO:
        raise FatalError(f"cannot choose a backend: {why_not}; for simulated GPUs say --backend simulated")
    raise FatalError(f"cannot use backend {config.backend.value}: {why_not}")


def _hits_whole_gpu(code: int) -> bool:
    """Whether an XID concerns all slices of a GPU, though it names one; one that nobody knows does."""
    known = xids.row(code)
    return known is None or known.scope is not xids.XidScope.APP
