"""NVIDIA's device plugin on the real node, alone and behind ours."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cluster import files
from tests.cluster.autoclave import DEVICE_PLUGINS, GPUS, Autoclave
from tests.cluster.cluster import Cluster, container
from tests.cluster.nvidia import ROOT, SPECS, install, mounted
from tests.cluster.programs import Program

DIRECTORY = DEVICE_PLUGINS / "vendor"
REGISTERED = "the vendor's plugin has registered"


class InFront:
    """NVIDIA's plugin and ours."""

    def __init__(self, cluster: Cluster, program: Path, environment: dict[str, str], logs: Path) -> None:
        self.cluster = cluster
        self._program = program
        self._environment = environment
        self._logs = logs
        ours: list[str | Path] = [sys.executable, "-m", "autoclave", "plugin", "--vendor-dir", DIRECTORY]
        ours += ["--standby", "--metrics-address", "127.0.0.1:0"]  # as the chart does
        self.ours = Program("autoclave-in-front", ours, self._logs)
        self.vendor = self.nvidia()

    def nvidia(self, **environment):
        """NVIDIA's plugin; with an empty ``KUBELET_SOCKET``, it registers with the kubelet."""
        sets = {"KUBELET_SOCKET": f"{DIRECTORY}/kubelet.sock", **self._environment, **environment}
        assigned = [f"{key}={value}" for key, value in sets.items() if value]
        flags: list[str | Path] = [
            "--nvidia-driver-root",
            ROOT,
            "--driver-root-ctr-path",
            ROOT,
            "--nvidia-cdi-hook-path",
            "/bin/true",
        ]
        more = ["--gdrcopy-enabled=false", "--gds-enabled=false", "--mofed-enabled=false"]
        return Program("nvidia-plugin", ["env", *assigned, self._program, *flags, *more], self._logs)

    async def hold(self, name, *flags, says="HOLDING"):
        """Create a pod with all GPUs, and return when it has filled them with its secret, or says something else."""
        spec = mounted(self.cluster.spec(), container(*flags, gpus=GPUS))
        await self.cluster.create(name, *spec.pop("containers"), **spec)
        await self.cluster.said(name, says)

    async def start(self):
        """Start ours, and then NVIDIA's: it needs the directory of its socket."""
        before = self.ours.log.read_text().count("waiting for") if self.ours.log.exists() else 0
        self.ours.start()
        await files.until(self.ours.log, lambda: self.ours.log.read_text().count("waiting for") > before)
        self.vendor.start()

    @asynccontextmanager
    async def registered_again(self):
        """Leave when NVIDIA's plugin has registered with ours once more."""
        before = self.ours.log.read_text().count(REGISTERED)
        yield
        await files.until(self.ours.log, lambda: self.ours.log.read_text().count(REGISTERED) > before)

    async def offered(self, count=GPUS):
        """Return when the scheduler may place so many GPUs."""
        await self.cluster.offered(count)

    def end(self):
        """End what runs."""
        for program in (self.ours, self.vendor):
            if program.process is not None:
                program.end()


def replace(autoclave: Autoclave) -> dict[str, str]:
    """Put NVIDIA's library in the place of our plugin, and start the service. Returns what NVIDIA's plugin needs."""
    environment: dict[str, str] = install()
    SPECS.mkdir(exist_ok=True)
    autoclave.serve()
    return environment
