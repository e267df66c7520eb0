"""The create gate on the node: the program, and the CDI specification that makes the container runtime run it.

Each device has a gate, and each claim has one of its own for each of its devices, which ends with the claim. So a late
container of an earlier claim does not pass.

The service installs both, because it is root on the node already: whoever writes a CDI specification runs programs as
root. The plugin only names the gate of a device in its answers. A container with such a name is not created without
the specification, without the program, or without an answer of the service.

Both survive a reboot, because the kubelet keeps the answers of the plugin. A service that runs without the gate leaves
a specification in which the same names do nothing, so that containers of earlier answers start again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Never

from scrubber.core import ownership
from scrubber.core.model import Record
from scrubber.ground import log, private_files
from scrubber.ground.errors import FatalError
from scrubber.ledger.ledger import Ledger

logger = log.get("create gate")

KIND = "autoclave.dev/gate"
SPECIFICATION = "autoclave-gate.json"
PROGRAM = "autoclave-gate"
ASKED = "gate-asked"
VERSION = "2"  # of the protocol of ``gate.sock``
OF_CLAIM = "."  # in the name of a claim's gate, between the device and the UID of the claim
CLAIM = re.compile("[A-Za-z0-9-]{0,62}[A-Za-z0-9]")  # a UID; other owners, such as jobs of Slurm, have no containers
ASKS_FOR = 60  # seconds that the program waits for a yes
RUNTIME_WAITS = 90  # seconds after which the container runtime ends the program
TRIED_WITHIN = 10.0
TRIED_EVERY = 10.0  # seconds, also without a change: the last attempt may have failed
USAGE = b"usage: autoclave-gate SOCKET DEVICE SECONDS"

Hook = Callable[[str], dict[str, Any]]  # what the runtime does for a container with this device


def gates(records: Mapping[str, Record]) -> frozenset[str]:
    """The names of the gates of these devices and of the claims that have them."""
    grants = {device: record.grant for device, record in records.items() if ownership.until_release(record)}
    claims = (f"{device}{OF_CLAIM}{it.owner}" for device, it in grants.items() if it and CLAIM.fullmatch(it.owner))
    return frozenset(records) | frozenset(claims)


class CreateGate:
    """The devices whose containers pass the gate."""

    def __init__(self, directory: Path, hook: Hook, asked: Path, notify: Callable[[], None]) -> None:
        """``directory``: where the container runtime reads CDI specifications.

        ``asked``: a file that a reboot removes. It is there if the runtime has asked: so the runtime knows CDI.
        ``notify`` is called when the gate comes into force: Allocate waits until the plugin knows.
        """
        self._notify = notify
        self._asked = asked
        self._has_asked = asked.exists()
        self.specification = directory / SPECIFICATION
        self._hook = hook
        self._covered: frozenset[str] = frozenset()

    def cover(self, names: Iterable[str]) -> bool:
        """Make the container runtime know these gates, and no others. Returns whether that changed. Raises OSError."""
        wanted = frozenset(names)
        if wanted == self._covered:
            return False
        _write(self.specification, _specification(sorted(wanted), self._hook))
        self._covered = wanted
        return True

    def in_force(self, device: str) -> bool:
        """Whether no container is created with this device before the service says yes."""
        return self._has_asked and device in self._covered

    def note_question(self) -> None:
        """The container runtime has asked."""
        if self._has_asked:
            return
        self._has_asked = True
        self._notify()
        logger.info("create gate in force: the container runtime asks")
        try:
            self._asked.touch()
        except OSError as error:
            logger.warning(
                "the next run of the service will not know that the container runtime asks", error=str(error)
            )

    async def follow(self, ledger: Ledger) -> Never:
        """Cover each new device and claim of the ledger. Until then the container runtime creates nothing with it."""
        fault = ""
        while True:
            news = ledger.notifications
            try:
                names = gates(ledger.records)
                news_of_devices = not self._covered >= ledger.records.keys()
                if names != self._covered and await asyncio.to_thread(self.cover, names) and news_of_devices:
                    logger.info("create gate covers the devices", devices=len(ledger.records))
                    ledger.notify()
                fault = ""
            except OSError as error:
                if str(error) != fault:
                    fault = str(error)
                    logger.error("new devices are not under the create gate", error=fault)  # noqa: TRY400 - expected
            await ledger.until_notified(news, TRIED_EVERY)

    def name(self, device: str) -> str:
        """The CDI name of the gate of a device; empty while the container runtime does not know it."""
        return f"{KIND}={device}" if device in self._covered else ""


def install(program: Path, directory: Path, state_dir: Path, socket: Path, notify: Callable[[], None]) -> CreateGate:
    """Put the program on the node, or raise a FatalError. No device is covered yet."""
    try:
        installed = _install_program(program, state_dir / "gate")
    except (OSError, subprocess.SubprocessError) as error:
        raise FatalError(f"cannot install the create gate {program} in {state_dir / 'gate'}: {error}") from error
    logger.info("create gate installed", program=str(installed), specification=str(directory / SPECIFICATION))
    return CreateGate(directory, lambda device: _runs(installed, socket, device), socket.with_name(ASKED), notify)


def open_for_all(directory: Path) -> None:
    """Make the gate of earlier answers do nothing, where there is one. Raises OSError."""
    path = directory / SPECIFICATION
    try:
        names = [device["name"] for device in json.loads(path.read_bytes())["devices"]]
    except FileNotFoundError:
        return
    except (ValueError, LookupError, TypeError) as error:
        raise OSError(f"{path} is no CDI specification: {error}") from error
    _write(path, _specification(names, lambda _device: {"env": ["AUTOCLAVE_GATE=off"]}))
    logger.warning("the create gate is off: its containers start without a question", specification=str(path))


def _install_program(source: Path, folder: Path) -> Path:
    """A copy of its own for each build: a container that is created meanwhile finds the one that it was told."""
    content = source.read_bytes()
    target = folder / f"{PROGRAM}-{hashlib.sha256(content).hexdigest()[:12]}"
    with private_files.beside(target, content) as copy:
        copy.chmod(0o700)
        try_program(copy)
        copy.replace(target)
    return target


def try_program(program: Path) -> None:
    """Run the program without a question. Raises OSError or SubprocessError if it does not run."""
    tried = subprocess.run([program], check=False, capture_output=True, timeout=TRIED_WITHIN, env={})
    if USAGE not in tried.stderr:
        raise OSError(f"it does not run: exit code {tried.returncode}")


def _runs(program: Path, socket: Path, device: str) -> dict[str, Any]:
    hook = {
        "hookName": "createRuntime",
        "path": str(program),
        "args": [PROGRAM, str(socket), device, str(ASKS_FOR)],
        "env": ["PATH=/usr/bin:/bin"],  # without one, the runtime passes on its own environment
        "timeout": RUNTIME_WAITS,
    }
    return {"hooks": [hook]}


def _specification(devices: Iterable[str], hook: Hook) -> dict[str, Any]:
    each = [{"name": device, "containerEdits": hook(device)} for device in devices]
    return {"cdiVersion": "0.5.0", "kind": KIND, "devices": each}


def _write(path: Path, specification: dict[str, Any]) -> None:
    """Replace the file. A container runtime never reads half of it, and takes no name that begins with a dot."""
    aside = path.with_name(f".{path.name}.new")
    aside.unlink(missing_ok=True)
    handle = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "w") as file:
        json.dump(specification, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
