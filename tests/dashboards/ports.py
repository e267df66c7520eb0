"""Free ports for the trial, which listens on three that follow each other."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from demo.bad_day.node import LOOPBACK

PORTS = 3  # of the service, of the plugin, of Prometheus


def free_ports() -> int:
    """The first of three free ports on the loopback, outside the range that the kernel assigns."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        first = random.randrange(1024, lowest - PORTS)  # noqa: S311 - so that two who look at once find others
        if not any(_answers(port) for port in range(first, first + PORTS)):
            return first


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0
