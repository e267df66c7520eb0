"""The hooks of CDI devices, as a container runtime runs them when it creates a container."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from demo.standins.pods import Container, Pod
from demo.standins.runtime import CannotCreate


async def run(names: Collection[str], directory: Path, pod: Pod, container: Container) -> None:
    """Run the createRuntime hooks of these CDI devices, or raise CannotCreate."""
    annotations = {"sandbox-uid": pod.uid, "sandbox-namespace": "default", "sandbox-name": pod.name}
    prefixed = {f"io.kubernetes.cri.{key}": value for key, value in annotations.items()}
    named = {**prefixed, "io.kubernetes.cri.container-name": container.name}
    state = json.dumps({"id": f"{pod.uid}-{container.name}", "status": "creating", "annotations": named})
    for hook in _hooks(names, directory):
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            hook["path"],
            *hook["args"][1:],
            stdin=pipe,
            stderr=pipe,
            env=dict(variable.split("=", 1) for variable in hook["env"]),
        )
        _, said = await process.communicate(state.encode())
        if process.returncode != 0:
            raise CannotCreate(f"error running hook: exit status {process.returncode}, stderr: {said.decode()}")


def _hooks(names: Collection[str], directory: Path) -> Iterator[dict[str, Any]]:
    """The hooks of each device, which a specification of the directory must describe if it has its kind."""
    for file in sorted(directory.glob("*.json")):
        specification = json.loads(file.read_bytes())
        devices = {
            f"{specification['kind']}={device['name']}": device["containerEdits"] for device in specification["devices"]
        }
        for name in names:
            if name.startswith(f"{specification['kind']}=") and name not in devices:
                raise CannotCreate(f"unresolvable CDI devices {name}")
            yield from devices.get(name, {}).get("hooks", ())
