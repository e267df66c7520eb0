"""The question of the create gate, as the container runtime's hook puts it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from demo.standins.pods import Pod
from scrubber.create_gate.gate_server import CONTAINERD
from scrubber.create_gate.installation import OF_CLAIM, VERSION

SECONDS = 20  # for which the runtime waits


async def asked(socket: Path, device: str, claim: str, pod: Pod) -> str:
    """The answer for the first container of the pod; empty if the service went away."""
    names = dict(zip(CONTAINERD, (pod.uid, "default", pod.name, "main"), strict=True))
    state = json.dumps({"id": pod.uid, "annotations": names}).encode()
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(f"{VERSION} create {SECONDS} {device}{OF_CLAIM}{claim} {len(state)}\n".encode() + state)
        await writer.drain()
        line = await reader.readline()
    finally:
        writer.close()
    return line.decode().strip().partition(" ")[2]
