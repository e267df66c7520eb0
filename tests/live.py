"""The real service on simulated GPUs, as a process of its own."""

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autoclave.cli import service_call
from scrub_api import admin_client, views
from tests.patience import WITHIN


class Service:
    """The real service on simulated GPUs, as a process."""

    program: tuple[str | Path, ...] = (sys.executable, "-m", "autoclave")

    def __init__(self, root: Path, gpus: int, *flags: object) -> None:
        self.root = root
        self.run_dir, self.simulated_dir = root / "run", root / "gpus"
        self.command: list[str | Path] = [
            *self.program, "scrubber", "--backend", "simulated", "--log-format", "json",
            "--run-dir", self.run_dir, "--state-dir", root / "state", "--simulated-dir", self.simulated_dir,
            "--kubelet-dir", root, "--pod-logs-dir", root / "pods",
            "--simulated-gpus", str(gpus), "--simulated-memory", "1MiB", *map(str, flags),
        ]  # fmt: skip
        self.start()

    def start(self, until="serving"):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        self.log_lines: list[str] = []
        self.follow()
        self.hear(until)

    def follow(self):
        """Read the log all the time: a service whose log nobody reads stops as soon as the pipe is full."""
        log, lines = self.process.stderr, queue.SimpleQueue[str]()
        assert log is not None

        def read() -> None:
            with log:
                for line in log:
                    lines.put(line)
            lines.put("")

        self._lines = lines
        threading.Thread(target=read, daemon=True).start()

    def hear(self, words):
        """Wait for a line of the log that holds these words; what it says before is kept for later."""
        for line in iter(self._lines.get, ""):
            self.log_lines.append(line)
            if words in line:
                return json.loads(line)
        self._lines.put("")  # for ``end``
        pytest.fail(f"the service did not say {words!r}:\n" + "".join(self.log_lines), pytrace=False)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        self.end()

    def end(self):
        """Read the rest of the log of a service that stops."""
        self.log_lines += iter(self._lines.get, "")
        assert self.process.wait(WITHIN) == 0

    def settled(self, gpu, *states):
        """The device, as soon as it is in one of these states."""

        async def until(admin: admin_client.AdminClient) -> views.DeviceStatus:
            status = await admin.status([str(gpu)])
            while status.devices[0].state not in states:
                status = await admin.status([str(gpu)], newer_than=status.service.ledger_rows, wait=10)
            return status.devices[0]

        return service_call.ask(self.run_dir, until)

    def popen(self, *args, **options):
        """A verb in a process of its own, for signals and terminals."""
        env = {**os.environ, "AUTOCLAVE_RUN_DIR": str(self.run_dir), **options.pop("env", {})}
        return subprocess.Popen([sys.executable, "-m", "autoclave", *map(str, args)], env=env, text=True, **options)
