"""What systemd is told, where it has started the service (sd_notify). The GPUs are not affected if it takes nothing."""

from __future__ import annotations

import asyncio
import os
import socket

from ground import log

logger = log.get("daemon")

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"
AGAIN_AFTER = 0.1  # seconds


def tell(*lines: str) -> None:
    """Tell systemd these lines. If its queue is full, again a little later: without READY, it ends the service."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto("\n".join(lines).encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
        except BlockingIOError:
            if lines != (ALIVE,):  # the next sign of life says the same
                asyncio.get_running_loop().call_later(AGAIN_AFTER, tell, *lines)
        except OSError as error:
            logger.warning("cannot notify systemd", lines=lines, error=str(error))


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
