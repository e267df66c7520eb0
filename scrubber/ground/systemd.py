"""Tells systemd that the service answers, that it stops, and that it lives. Without systemd it does nothing.

The protocol is the one of ``sd_notify``: lines such as ``READY=1`` in one datagram to the socket in ``NOTIFY_SOCKET``.
"""

from __future__ import annotations

import asyncio
import os
import socket

from scrubber.ground import log

logger = log.get("daemon")

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"


def tell(*lines: str) -> None:
    """Tell systemd these lines. A line that it does not take changes nothing for the GPUs, so it is only logged."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto("\n".join(lines).encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
        except OSError as error:
            logger.warning("systemd cannot be told", lines=lines, error=str(error))


def status(text: str) -> str:
    """A line that ``systemctl status`` shows."""
    return "STATUS=" + " ".join(text.split())


async def show_life() -> None:
    """Tell systemd twice in each time of its watchdog that the event loop runs. Without a watchdog, return."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    within = int(os.environ.get("WATCHDOG_USEC") or 0) / 1e6  # seconds
    while within:
        tell(ALIVE)
        await asyncio.sleep(within / 2)
