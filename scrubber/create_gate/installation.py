"""The create gate on the node: the program, and the CDI specification that makes the container runtime run it.

Each device has a gate, and each claim has one of its own for each of its devices, which ends with the claim. So a late
container of an earlier claim does not pass.

The service installs both, because it is root on the node already: whoever writes a CDI specification runs programs as
root. The plugin only names the gate of a device in its answers. A container with such a name is not created without
the specification, without the program, or without an answer of the service.

Both survive a reboot, because the kubelet keeps the answers of the plugin. A service that runs without the gate leaves
a specification in which the same names do nothing, so that containers of earlier answers start again.

``CreateGate`` also remembers, over restarts of the service, which containers the gate has let through. Whether the gate
is in force rests on them: see ``core.gate_in_force``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Never

from asyncinotify import Inotify, Mask

from ground import log, paths, private_files, public_names
from ground.aio import Changed
from ground.documents import strict_json
from ground.errors import FatalError
from scrubber.core.model import Passage
from scrubber.core.record import Record
from scrubber.ledger.ledger import Ledger

logger = log.get("create gate")

SPECIFICATION = "autoclave-gate.json"
PROGRAM = "autoclave-gate"
ASKED = "gate-asked"
VERSION = "2"  # of the protocol of ``gate.sock``
OF_CLAIM = "."  # in the name of a claim's gate, between the device and the UID of the claim
CLAIM = re.compile("[A-Za-z0-9-]{0,62}[A-Za-z0-9]")  # a UID; other owners, such as jobs of Slurm, have no containers
BEFORE_KUBELET = 10  # seconds by which the program gives up before the kubelet does, so that its sentence is shown
BEFORE_RUNTIME = 5  # ... and before the container runtime ends it, which also happens before the kubelet gives up
TRIED_WITHIN = 10.0
TRIED_EVERY = 1.0  # seconds, also without a notice: the last attempt may have failed, and the watch too
CHANGES = Mask.CREATE | Mask.CLOSE_WRITE | Mask.MODIFY | Mask.MOVE | Mask.DELETE | Mask.DELETE_SELF
RUNTIMES = (  # below the root directory of the host; each start of a container runtime makes its socket anew
    "run/containerd/containerd.sock", "run/k3s/containerd/containerd.sock", "run/crio/crio.sock",
)  # fmt: skip
USAGE = b"usage: autoclave-gate SOCKET DEVICE SECONDS"

Hook = Callable[[str], dict[str, Any]]  # what the runtime does for a container with this device
Mark = tuple[int, ...]  # tells a file from any other that has, or had, its name


def gates(records: Mapping[str, Record]) -> frozenset[str]:
    """The names of the gates of these devices and of the claims that have them."""
    owners = {
        device: record.tenancy.acquired_by
        for device, record in records.items()
        if record.tenancy.until_release or record.tenancy.kept_for
    }
    claims = (f"{device}{OF_CLAIM}{owner}" for device, owner in owners.items() if CLAIM.fullmatch(owner))
    return frozenset(records) | frozenset(claims)


class CreateGate:
    """The devices whose containers pass the gate, and the containers that it has let through."""

    def __init__(self, directory: Path, hook: Hook, asked: Path, sockets: Iterable[Path], news: Changed) -> None:
        """``directory``: where the container runtime reads CDI specifications.

        ``asked``: a file that a reboot removes. It keeps what the gate has let through for the next run of the service.
        ``sockets``: where container runtimes listen, as far as the service can see them. ``news`` has each change of
        the ledger. The gate notifies it when it comes into force on a device, or is no longer known to be: Allocate
        waits until the plugin knows.
        """
        self.specification = directory / SPECIFICATION
        self.receipts: Callable[[str], str] = lambda _device: ""  # the directory for the claim that has a device
        self._hook = hook
        self._asked = asked
        self._sockets = tuple(sockets)
        self._news = news
        self._covered: frozenset[str] = frozenset()
        self._era = 0  # grows with each change of the specification by others, and with each run of the runtime
        self._ours, self._runtimes, self._passages = _remembered(asked)
        self._look()

    def cover(self, names: Iterable[str]) -> bool:
        """Make the container runtime know these gates, and no others. Returns whether that changed. Raises OSError."""
        wanted = frozenset(names)
        if wanted == self._covered and self._is_ours():
            return False
        content = _specification(sorted(wanted), self._edits)
        with private_files.replacing(self.specification, content, private_files.READABLE_FILE) as new:
            written = _mark(new)
            self._ours |= {written}  # the event loop, or another run of the service, may look before and after
            self._remember()
        self._ours, self._covered = frozenset({written}), wanted
        return True

    def _edits(self, name: str) -> dict[str, Any]:
        """What the runtime does for a container with this gate: a claim has no other way to its receipts."""
        device, of_claim, _ = name.partition(OF_CLAIM)
        folder = Path(self.receipts(device)) if of_claim else Path()
        if not (folder.name and folder.is_dir()):  # the runtime would not create the container without the directory
            return self._hook(name)
        mount = {
            "hostPath": str(folder),
            "containerPath": f"{paths.RECEIPTS_IN_CONTAINERS}/{folder.name}",
            "options": ["ro", "nosuid", "nodev", "bind"],
        }
        variable = f"{paths.RECEIPTS_VARIABLE}={paths.RECEIPTS_IN_CONTAINERS}"
        return {**self._hook(name), "mounts": [mount], "env": [variable]}

    def covers(self, device: str) -> bool:
        """Whether the specification on the disk is ours and names the device."""
        return device in self._covered and self._is_ours()

    def passages(self) -> Mapping[str, Passage]:
        """By device, the last container that the gate let through since the boot."""
        self._look()
        return self._passages

    def era(self) -> int:
        """A number that is another one if the specification was changed since, or the container runtime restarted."""
        self._look()
        return self._era

    def let_through(self, device: str, pod: str, uptime: float, era: int) -> None:
        """A container of this pod is created with the device. ``era``: that of the question."""
        counts = era == self.era()
        if counts and not any(passage.counts for passage in self._passages.values()):
            logger.info("create gate in force: the container runtime asks", device=device)
        self._passages = {**self._passages, device: Passage(pod, uptime, counts)}
        self._remember()
        self._news.notify()

    async def follow(self, ledger: Ledger) -> Never:
        """Cover each new device and claim of the ledger. Until then the container runtime creates nothing with it.

        If another program changes or removes the specification, write it again.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            fault = ""
            while True:
                count = self._news.notifications
                self._look()
                names = gates(ledger.records)
                news_of_devices = not self._is_ours() or not self._covered >= ledger.records.keys()
                try:
                    if names != self._covered or news_of_devices:
                        await asyncio.to_thread(self.cover, names)
                    fault = ""
                    if news_of_devices:
                        logger.info("create gate covers the devices", devices=len(ledger.records))
                        self._news.notify()
                except OSError as error:
                    if str(error) != fault:
                        fault = str(error)
                        logger.error("new devices are not under the create gate", error=fault)  # noqa: TRY400 - expected
                await self._news.after(count, TRIED_EVERY)

    def name(self, device: str) -> str:
        """The CDI name of the gate of a device; empty as long as the container runtime was never told of it."""
        return f"{public_names.GATE}={device}" if device in self._covered else ""

    async def _watch(self) -> Never:
        """Notify when another program changes the specification. Without a watch, ``follow`` looks every second."""
        fault = ""
        while True:
            try:
                with Inotify() as inotify:
                    inotify.add_watch(self.specification.parent, CHANGES)
                    async for event in inotify:
                        if Mask.IGNORED in event.mask:  # the directory was removed
                            break
                        if not self._is_ours():
                            self._news.notify()
            except OSError as error:  # such as too many watches on the node
                if str(error) != fault:
                    fault = str(error)
                    logger.warning("cannot watch the specification of the create gate; it is looked at every second",
                                   error=fault)  # fmt: skip
            await asyncio.sleep(TRIED_EVERY)

    def _is_ours(self) -> bool:
        """Whether the specification on the disk is the one that this service wrote."""
        mark = _mark(self.specification)
        return mark is not None and mark in self._ours

    def _look(self) -> None:
        """After a change of the specification or of the container runtime, what was let through before counts no more.

        Called by the event loop only.
        """
        ours, runtimes = self._is_ours(), {str(socket): _mark(socket) for socket in self._sockets}
        if ours and runtimes == self._runtimes:
            return
        self._era += 1
        self._runtimes = runtimes
        if any(passage.counts for passage in self._passages.values()):
            why = "the container runtime was restarted" if ours else "another program changed the specification"
            logger.warning("create gate not in force until the container runtime asks again", why=why)
            self._passages = {device: replace(passage, counts=False) for device, passage in self._passages.items()}
            self._remember()
            self._news.notify()

    def _remember(self) -> None:
        """Keep what was let through, for the next run of the service."""
        kept = {
            "specification": sorted(mark for mark in self._ours if mark is not None),
            "runtimes": self._runtimes,
            "passages": {
                device: [passage.pod, passage.at, passage.counts] for device, passage in self._passages.items()
            },
        }
        try:
            private_files.replace(self._asked, json.dumps(kept).encode())
        except OSError as error:
            logger.warning("the next run of the service will not know what the create gate let through",
                           error=str(error))  # fmt: skip


def _remembered(
    asked: Path,
) -> tuple[frozenset[Mark | None], dict[str, Mark | None], Mapping[str, Passage]]:
    """What the last run of the service wrote, and what it let through; nothing if that cannot be read."""
    try:
        kept: Any = strict_json.parse(private_files.content(asked))
        return (
            frozenset(tuple(map(int, mark)) for mark in kept["specification"]),
            {str(path): mark and tuple(map(int, mark)) for path, mark in kept["runtimes"].items()},
            {str(name): Passage(str(pod), float(at), counts is True)
             for name, (pod, at, counts) in kept["passages"].items()},
        )  # fmt: skip
    except FileNotFoundError:
        return frozenset(), {}, {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        logger.warning("cannot read what the create gate let through", file=str(asked), error=str(error))
        return frozenset(), {}, {}


def install(
    program: Path,
    directory: Path,
    state_dir: Path,
    socket: Path,
    host_root: Path,
    kubelet_waits: float,
    news: Changed,
) -> CreateGate:
    """Put the program on the node, or raise a FatalError. No device is covered yet.

    ``kubelet_waits``: for how many seconds the kubelet waits until a container is created. The program waits nearly as
    long: if it gives up, a pod with ``restartPolicy: Never`` fails.
    """
    try:
        private_files.remove_leftovers(directory / SPECIFICATION)
        installed = _install_program(program, state_dir / "gate")
    except (OSError, subprocess.SubprocessError) as error:
        raise FatalError(f"cannot install the create gate {program} in {state_dir / 'gate'}: {error}") from error
    logger.info("create gate installed", program=str(installed), specification=str(directory / SPECIFICATION))
    runtimes = [host_root / path for path in RUNTIMES]
    hook = partial(_runs, installed, socket, int(kubelet_waits) - BEFORE_KUBELET)
    return CreateGate(directory, hook, socket.with_name(ASKED), runtimes, news)


def open_for_all(directory: Path, socket: Path) -> None:
    """Make the gate of earlier answers do nothing, where there is one, and forget what it let through. Raises OSError.

    A later run with the gate must not believe in questions from before: meanwhile, containers started without one.
    """
    socket.with_name(ASKED).unlink(missing_ok=True)
    path = directory / SPECIFICATION
    try:
        specification: Any = strict_json.parse(private_files.content(path))
        names = [str(device["name"]) for device in specification["devices"]]
    except FileNotFoundError:
        return
    except (ValueError, LookupError, TypeError) as error:
        raise OSError(f"{path} is no CDI specification: {error}") from error
    content = _specification(names, lambda _device: {"env": ["AUTOCLAVE_GATE=off"]})
    private_files.replace(path, content, private_files.READABLE_FILE)
    logger.warning("the create gate is off: its containers start without a question", specification=str(path))


def _install_program(source: Path, folder: Path) -> Path:
    """A copy of its own for each build: a container that is created meanwhile finds the one that it was told."""
    content = source.read_bytes()
    target = folder / f"{PROGRAM}-{hashlib.sha256(content).hexdigest()[:12]}"
    private_files.make_folder(folder)
    with private_files.replacing(target, content, mode=0o700) as copy:
        try_program(copy)
    return target


def try_program(program: Path) -> None:
    """Run the program without a question. Raises OSError or SubprocessError if it does not run."""
    tried = subprocess.run([program], check=False, capture_output=True, timeout=TRIED_WITHIN, env={})
    if USAGE not in tried.stderr:
        raise OSError(f"it does not run: exit code {tried.returncode}")


def _runs(program: Path, socket: Path, waits: int, device: str) -> dict[str, Any]:
    hook = {
        "hookName": "createRuntime",
        "path": str(program),
        "args": [PROGRAM, str(socket), device, str(waits)],
        "env": ["PATH=/usr/bin:/bin"],  # without one, the runtime passes on its own environment
        "timeout": waits + BEFORE_RUNTIME,
    }
    return {"hooks": [hook]}


def _specification(devices: Iterable[str], hook: Hook) -> bytes:
    each = [{"name": device, "containerEdits": hook(device)} for device in devices]
    return json.dumps({"cdiVersion": "0.5.0", "kind": public_names.GATE, "devices": each}, indent=1).encode()


def _mark(path: Path) -> Mark | None:
    """The mark of a file, which a new name does not change; None if it cannot be seen."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
