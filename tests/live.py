"""The real service on simulated GPUs, as a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoclave.cli import service_call
from scrubber.api import admin_client
from scrubber.core import views
from tests.patience import WITHIN


class Service:
    """The real service on simulated GPUs, as a process."""

    def __init__(self, root: Path, gpus: int, *flags: object) -> None:
        self.root = root
        self.run_dir, self.simulated_dir = root / "run", root / "gpus"
        self.command: list[str | Path] = [
            sys.executable, "-m", "autoclave", "scrubber", "--backend", "simulated", "--log-format", "json",
            "--run-dir", self.run_dir, "--state-dir", root / "state", "--simulated-dir", self.simulated_dir,
            "--kubelet-dir", root, "--pod-logs-dir", root / "pods", "--gate-cdi-dir", root / "cdi",
            "--simulated-gpus", str(gpus), "--simulated-memory", "1MiB", *map(str, flags),
        ]  # fmt: skip
        self.start()

    def start(self, until="serving"):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.log = self.process.stderr
        self.log_lines: list[str] = []
        self.hear(until)

    def hear(self, words):
        """Read the log up to a line that holds these words; what it says is kept for later."""
        for line in self.log:
            self.log_lines.append(line)
            if words in line:
                return json.loads(line)
        pytest.fail(f"the service did not say {words!r}:\n" + "".join(self.log_lines), pytrace=False)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def stop(self):
        self.process.terminate()
        self.log_lines += self.log.readlines()
        assert self.process.wait(WITHIN) == 0
        self.log.close()

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
