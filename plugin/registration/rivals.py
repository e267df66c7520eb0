"""Finds another plugin that serves in the kubelet's directory, by the names that NVIDIA's plugin and its forks use.

From Kubernetes 1.37 on, the kubelet keeps both plugins of a resource, and informs neither of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from ground import log, unix_sockets

logger = log.get("registration")

EVERY = 5.0  # seconds
NOT_PROVEN = "another plugin serves in the kubelet's directory: what it hands out is not proven"


def serving(kubelet_dir: Path, resource_prefix: str) -> set[Path]:
    """The sockets of such plugins that answer."""
    sockets = kubelet_dir.glob(f"{resource_prefix.partition('.')[0]}-*.sock")
    return {socket for socket in sockets if unix_sockets.connect_error(socket) is None}


async def watch(kubelet_dir: Path, resource_prefix: str, report: Callable[[str], None]) -> None:
    """Until cancelled, report the socket of another plugin, or an empty text."""
    before = ""
    while True:
        socket = min(map(str, serving(kubelet_dir, resource_prefix)), default="")
        if socket not in ("", before):
            logger.error(NOT_PROVEN, socket=socket)
        before = socket
        report(socket)
        await asyncio.sleep(EVERY)
