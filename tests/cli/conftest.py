"""Running verbs as somebody at a shell would, with and without a service."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scrubber import cli
from scrubber.api import client
from scrubber.cli import asking
from scrubber.core import view

GPUS = 20  # at least as many as tests that ask for one


class Service:
    """The real service on simulated GPUs, as a process."""

    def __init__(self, root: Path, gpus: int) -> None:
        self.root = root
        self.run_dir, self.simulated_dir = root / "run", root / "gpus"
        self.command: list[str | Path] = [
            sys.executable, "-m", "scrubber", "scrubber", "--backend", "simulated", "--log-format", "json",
            "--run-dir", self.run_dir, "--state-dir", root / "state", "--simulated-dir", self.simulated_dir,
            "--kubelet-dir", root, "--simulated-gpus", str(gpus), "--simulated-memory", "1MiB",
        ]  # fmt: skip
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.log = self.process.stderr
        heard = []
        for line in self.log:
            heard.append(line)
            if '"serving"' in line:
                break
        else:
            pytest.fail("the service did not start:\n" + "".join(heard), pytrace=False)
        threading.Thread(target=self.log.read, daemon=True).start()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def stop(self):
        self.process.terminate()
        assert self.process.wait(20) == 0
        self.log.close()

    def settled(self, gpu, state):
        """The device, as soon as it is in that state."""

        async def until(admin: client.Admin) -> view.DeviceStatus:
            status = await admin.status([str(gpu)])
            while status.devices[0].state != state:
                status = await admin.status([str(gpu)], newer_than=status.service.ledger_rows, wait=10)
            return status.devices[0]

        return asking.ask(self.run_dir, until)

    def popen(self, *args, **options):
        """A verb in a process of its own, for signals and terminals."""
        env = {**os.environ, "AUTOCLAVE_RUN_DIR": str(self.run_dir), **options.pop("env", {})}
        return subprocess.Popen([sys.executable, "-m", "scrubber", *map(str, args)], env=env, text=True, **options)


@pytest.fixture
def autoclave(request):
    """Run ``autoclave`` in this process: with its arguments, and what the environment says."""

    def run(*args: object, **env: str) -> Result:
        if "service" in request.fixturenames:
            env = {"AUTOCLAVE_RUN_DIR": str(request.getfixturevalue("service").run_dir), **env}
        return CliRunner().invoke(cli.cli, list(map(str, args)), prog_name="autoclave", env=env)

    return run


@pytest.fixture(scope="module")
def service():
    """One service for all tests of a module; each takes a GPU of its own."""
    with tempfile.TemporaryDirectory(prefix="ac-", dir="/tmp") as root:
        service = Service(Path(root), GPUS)
        yield service
        service.stop()


@pytest.fixture(scope="module")
def _unused() -> Iterator[int]:
    return iter(range(GPUS))


@pytest.fixture
def gpu(service, _unused):
    """A clean GPU that no other test touches."""
    index = next(_unused)
    service.settled(index, "clean")
    return index


@pytest.fixture
def mortal(short_tmp):
    """A service that a test may kill."""
    service = Service(short_tmp, 1)
    yield service
    service.stop()
