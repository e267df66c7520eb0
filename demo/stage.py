"""The stage of the demo: a whole node in a temporary directory.

The scrub service and the device plugin, or the DRA driver, are processes of their own, the kubelet is the stand-in,
containers are real processes. The stage ends every process that it started, by process id, also after a failure.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_delay, wait_fixed

from demo import groups
from demo.containers import ContainerRunner
from demo.installation import ByPlugin, Installation
from demo.programs import ServiceProgram
from ground import paths
from ground.errors import FatalError, Unreachable
from scrub_api import admin_client, client, views
from scrubber.devices.simulated import containers, drills, layout

ANSWERS_WITHIN = 60.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, `kill`, a closed terminal
T = TypeVar("T")


def run(main: Coroutine[object, object, T]) -> T:
    """Run what has a stage. At the first of the signals ``ENDING`` the stage ends its programs and is cleared away.

    A second one does not interrupt that. A third one ends the process at once.

    Only the main task is cancelled. To clear a stage away takes the others, such as the servers of the kubelet.
    """
    try:
        return asyncio.run(_until_signalled(main))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _until_signalled(main: Coroutine[object, object, T]) -> T:
    loop, task, signalled = asyncio.get_running_loop(), asyncio.create_task(main), asyncio.Event()

    def end() -> None:
        if not signalled.is_set():  # the loop hears the next signals, too
            signalled.set()
            task.cancel()
            for number in ENDING:
                signal.signal(number, _still_clearing)  # also while the loop waits for a control group

    for number in ENDING:
        loop.add_signal_handler(number, end)
    return await task


def _still_clearing(_number: int, _frame: object) -> None:
    for number in ENDING:  # before the words: who reads them may send the next signal at once
        signal.signal(number, signal.SIG_DFL)
    what = f"the programs, loop devices, control groups and directories of the stage in {tempfile.gettempdir()}"
    print(f"still clearing away {what}; another signal ends this at once and leaves them", file=sys.stderr, flush=True)


@dataclass
class Stage:
    """The directories, the programs, and connections to the service."""

    gpus: int
    memory: str = "64MiB"
    policy: str = "default"
    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="autoclave-")))
    uuids: tuple[str, ...] = ()
    runs: type[ContainerRunner] = ContainerRunner
    flags: tuple[str, ...] = ()  # more flags for the plugin
    installed_as: type[Installation] = ByPlugin
    fenced: bool = True  # with control groups for pods and the fence below them, where this user can make both

    def __post_init__(self) -> None:
        """Make the directories. Nothing runs yet."""
        self.kubelet_dir, self.pod_logs = self.root / "kubelet", self.root / "pods"
        self.simulated = self.root / "gpus"
        self.ledger = paths.ledger(self.root / "state")
        self.kubelet_dir.mkdir(exist_ok=True)
        places = ("--run-dir", str(self.root / "run"), "--kubelet-dir", str(self.kubelet_dir), "--log-format", "json")
        gpus = ("--simulated-dir", str(self.simulated), "--simulated-gpus", str(self.gpus))
        memory = ("--backend", "simulated", "--simulated-memory", self.memory)
        rules = ("--policy", self.policy, "--state-dir", str(self.root / "state"))
        names = ("--pod-logs-dir", str(self.pod_logs))
        (self.root / "cdi").mkdir(exist_ok=True)
        self.groups = groups.make() if self.fenced else None
        fence = () if self.groups is None else ("--cgroup-root", str(self.groups))
        arguments = ("scrubber", *places, *gpus, *memory, *rules, *names, *fence)
        self.service = ServiceProgram(arguments, self.root / "service.log")
        self.containers = self.runs(self.simulated)
        self.containers.groups = self.groups
        self.installation = self.installed_as(self.root, self.containers, self.flags)
        self.kubelet, self.plugin = self.installation.kubelet, self.installation.program

    def memory_of(self, gpu: int) -> Path:
        """The file with the memory of a GPU."""
        return self.simulated / f"gpu{gpu}" / "memory"

    def occupy(self, uuid: str, container: str = "", secret: bytes = b"") -> int:
        """Start a process on a GPU that was not given it: of this container, or of none. Returns its pid.

        One of no container ignores SIGTERM.
        """
        before = () if self.groups is None else groups.inside(groups.of_process(self.groups, container))
        if container:
            return drills.occupy(self.simulated, uuid, secret, container, before=before)
        return drills.zombie(self.simulated, uuid, secret, before=before)

    async def read(self, gpu: int, container: str = "") -> str:
        """Let a program of this container, or of the host, read a GPU that was not given it. Returns its error."""
        before = () if self.groups is None else groups.inside(groups.of_process(self.groups, container))
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        program = await asyncio.create_subprocess_exec(
            *(*before, "dd", f"if={self.memory_of(gpu)}", "of=/dev/null", "bs=64", "count=1", "status=none"),
            stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            env=environment | ({containers.MARK: container} if container else {}),
        )  # fmt: skip
        _, said = await program.communicate()
        return said.decode(errors="replace").strip()

    def admin(self) -> admin_client.AdminClient:
        """A connection for an operator."""
        return admin_client.AdminClient(paths.admin_socket(self.root / "run"))

    def scrubber(self) -> client.ScrubberClient:
        """A connection like that of the device plugin."""
        return client.ScrubberClient(self.root / "run" / "scrubber.sock")

    async def start(self) -> views.Status:
        """Start the service and wait for its first answer."""
        await self.service.start()
        status = await self._first_answer()
        self.uuids = tuple(device.device for device in status.devices)
        return status

    async def start_node(self) -> None:
        """Start the kubelet and the plugin, and wait until the plugin is registered."""
        await self.installation.begin(self.uuids)
        await self.kubelet.start()
        await self.plugin.start()
        try:
            await self.installation.registered(ANSWERS_WITHIN)
        except TimeoutError:
            words = self.plugin.last_words()
            raise FatalError(f"{self.installation.name} does not register; the last line of its log: {words}") from None

    async def settled(
        self, gpu: int, wanted: Callable[[views.DeviceStatus], bool], within: float = ANSWERS_WITHIN
    ) -> views.DeviceStatus:
        """The status of a GPU once ``wanted`` holds, or after ``within`` seconds."""
        ends = asyncio.get_running_loop().time() + within
        seen = 0
        async with self.admin() as admin:
            while True:
                status = await admin.status([str(gpu)], newer_than=seen, wait=0.2 if seen else 0.0)
                seen = status.service.ledger_rows
                if wanted(status.devices[0]) or asyncio.get_running_loop().time() >= ends:
                    return status.devices[0]

    async def clear_away(self, *, keep: bool) -> None:
        """End all processes and remove the directory."""
        await self.plugin.end(signal.SIGKILL)
        await self.service.end(signal.SIGKILL)
        await self.kubelet.kill()
        await self.installation.end()
        await self.containers.clear_away()
        for place in layout.places(self.simulated):
            layout.remove_node(place)
        if self.groups is not None:
            groups.remove(self.groups)
        if not keep:
            shutil.rmtree(self.root)

    def _given_up(self, attempts: RetryCallState) -> bool:
        """Whether to stop waiting: the service has ended, or the time is over."""
        return self.service.ended or stop_after_delay(ANSWERS_WITHIN)(attempts)

    async def _first_answer(self) -> views.Status:
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(Unreachable),
                stop=self._given_up,
                wait=wait_fixed(0.05),
                reraise=True,
            ):
                with attempt:
                    async with self.admin() as admin:
                        return await admin.status()
        except Unreachable as error:
            words = self.service.last_words()
            raise FatalError(f"the scrub service does not answer; the last line of its log: {words}") from error
        raise AssertionError  # a retry ends with an answer or an error


def halfway(device: views.DeviceStatus) -> bool:
    """Whether the first pass of the clear has written half of the memory, where a stalled clear stops."""
    job = device.job
    return job is not None and job.step == "clear" and 2 * job.done_bytes >= device.memory_bytes
