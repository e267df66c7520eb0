"""The stage of the demo: the real service as a process of its own, in a directory that is gone afterwards.

Everything that is started here is ended here, by process id, whatever happens on the stage.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from scrubber import config
from scrubber.api import client
from scrubber.core import view
from scrubber.errors import FatalError, Unreachable

ANSWERS_WITHIN = 15.0
STOPS_WITHIN = 10.0


@dataclass
class Stage:
    """Directories, the service, and two connections to it."""

    gpus: int
    memory: str = "64MiB"
    policy: str = "default"
    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="autoclave-demo-")))
    process: asyncio.subprocess.Process | None = None
    uuids: tuple[str, ...] = ()

    @property
    def simulated(self) -> Path:
        """Where the GPUs are."""
        return self.root / "gpus"

    @property
    def ledger(self) -> Path:
        """Where the service remembers."""
        return config.ledger(self.root / "state")

    @property
    def pid(self) -> int:
        """The running service."""
        if self.process is None:
            raise FatalError("cannot look at the service: it does not run")
        return self.process.pid

    @property
    def log(self) -> Path:
        """What the service said."""
        return self.root / "service.log"

    def memory_of(self, gpu: int) -> Path:
        """The file that is a GPU's memory."""
        return self.simulated / f"gpu{gpu}" / "memory"

    def admin(self) -> client.Admin:
        """A connection for an operator."""
        return client.Admin(config.admin_socket(self.root / "run"))

    def scrubber(self) -> client.Scrubber:
        """A connection for whoever hands devices out."""
        return client.Scrubber(self.root / "run" / "scrubber.sock")

    async def start(self) -> view.Status:
        """Start the service and wait for its first answer."""
        directories = {"state-dir": "state", "run-dir": "run", "simulated-dir": "gpus", "kubelet-dir": "kubelet"}
        flags = [part for flag, name in directories.items() for part in (f"--{flag}", str(self.root / name))]
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "scrubber", "scrubber", "--backend", "simulated", *flags),
                *("--simulated-gpus", str(self.gpus), "--simulated-memory", self.memory),
                *("--policy", self.policy, "--log-format", "json"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        status = await self._first_answer()
        self.uuids = tuple(device.device for device in status.devices)
        return status

    async def kill(self) -> None:
        """SIGKILL: what a power cut or the kernel's memory killer would do."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int | None:
        """A clean stop; the exit status."""
        return await self._end(signal.SIGTERM)

    async def settled(
        self, gpu: int, wanted: Callable[[view.DeviceStatus], bool], within: float = 15.0
    ) -> view.DeviceStatus:
        """A GPU's status once it is as wanted, or as it is when the time is over."""
        ends = asyncio.get_running_loop().time() + within
        seen = 0
        async with self.admin() as admin:
            while True:
                status = await admin.status([str(gpu)], newer_than=seen, wait=0.2 if seen else 0.0)
                seen = status.service.ledger_rows
                if wanted(status.devices[0]) or asyncio.get_running_loop().time() >= ends:
                    return status.devices[0]

    async def clear_away(self, *, keep: bool) -> None:
        """Leave nothing behind."""
        await self._end(signal.SIGKILL)
        if not keep:
            shutil.rmtree(self.root)

    async def _first_answer(self) -> view.Status:
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(Unreachable),
                stop=stop_after_delay(ANSWERS_WITHIN),
                wait=wait_fixed(0.05),
                reraise=True,
            ):
                with attempt:
                    async with self.admin() as admin:
                        return await admin.status()
        except Unreachable as error:
            said = self.log.read_text(errors="replace").strip().splitlines()
            last = said[-1] if said else "it said nothing"
            raise FatalError(f"cannot show the demo: the service does not answer; its last words: {last}") from error
        raise AssertionError  # a retry ends with an answer or an error

    async def _end(self, number: signal.Signals) -> int | None:
        process, self.process = self.process, None
        if process is None or process.returncode is not None:
            return process.returncode if process else None
        process.send_signal(number)
        try:
            return await asyncio.wait_for(process.wait(), STOPS_WITHIN)
        except TimeoutError:
            process.kill()
            return await process.wait()
