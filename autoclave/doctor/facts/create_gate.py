"""Try the create gate without a container: its specification, its program, its socket, and the container runtime."""

from __future__ import annotations

import json
import socket
import subprocess
import tomllib
from pathlib import Path

from autoclave.doctor.facts import safe_read
from autoclave.doctor.node_facts import CheckFault, CreateGateFacts, Node, fact
from scrubber.create_gate import installation

RUNTIME = "etc/containerd/config.toml"
ANSWERS_WITHIN = 5.0  # seconds
Hook = tuple[str, str, str]  # its device, its program, and where the program asks


@fact
def gate(node: Node, specification: str) -> CreateGateFacts:
    """The gate of this specification."""
    hooks = _hooks(Path(specification))
    readable = () if isinstance(hooks, CheckFault) else hooks
    return CreateGateFacts(
        covered=hooks if isinstance(hooks, CheckFault) else frozenset(device for device, _, _ in hooks),
        programs={program: _program(Path(program)) for program in {program for _, program, _ in readable}},
        sockets={path: _socket(path) for path in {path for _, _, path in readable}},
        without_cdi=_without_cdi(node.host_root / RUNTIME),
    )


def _hooks(specification: Path) -> tuple[Hook, ...] | CheckFault:
    text = safe_read.text(specification)
    if isinstance(text, CheckFault):
        return text
    try:
        return tuple(
            (str(device["name"]), str(hook["path"]), str(hook["args"][1]))
            for device in json.loads(text)["devices"]
            for hook in device["containerEdits"]["hooks"]
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        return CheckFault("it is not the specification of a create gate")


def _program(program: Path) -> CheckFault | None:
    """Why the program does not run. Without arguments it asks nobody."""
    try:
        installation.try_program(program)
    except OSError as error:
        return safe_read.fault(error)
    except subprocess.SubprocessError as error:
        return CheckFault(str(error))
    return None


def _socket(path: str) -> CheckFault | None:
    """Why the service gives no answer there. An empty question is answered with no, and counts as none."""
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(ANSWERS_WITHIN)
            asking.connect(path)
            asking.sendall(b"\n")
            answer = asking.recv(1024)
    except OSError as error:
        return safe_read.fault(error)
    return None if answer.startswith(f"{installation.VERSION} no ".encode()) else CheckFault("the service says nothing")


def _without_cdi(config: Path) -> str:
    """The configuration of containerd, if it switches CDI off; empty if that is not known."""
    text = safe_read.text(config)
    try:
        document = tomllib.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return ""
    plugins = document.get("plugins")
    tables = plugins.values() if isinstance(plugins, dict) else ()
    off = any(isinstance(table, dict) and table.get("enable_cdi") is False for table in tables)
    return str(config) if off else ""
