"""The node of the trial: the real service and the real plugin show their figures, the kubelet is the stand-in."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from plugin.testing.pods import Phase, Pod
from scrubber.core import views
from scrubber.demo.containers import ContainerRunner
from scrubber.demo.stage import RESOURCE, ServiceProgram, Stage
from scrubber.devices.simulated import tenants

GPUS = 4
LOOPBACK = "127.0.0.1"
PORTS = 3  # of the service, of the plugin, of Prometheus
NAME, CLUSTER = "gpu-node-1", "trial"  # the labels that scraping adds
WITHIN = 30.0  # seconds for anything to come about
UNTIDY = "untidy"  # pods whose names begin so leave something behind

# The default policy with less patience, so that a day fits into minutes. Returns are forgotten at once: in a loop, a
# GPU would soon wait for a person. MODE is replaced.
POLICY = """\
name: trial
description: The default with less patience, for trials
defaults:
  mode: MODE
  budgets: {owner_wait: 0s, silence: 1s}
  evict: {grace: 250ms}
  selftest: {time: 250ms}
  quarantine: {probation: {first: 1s, longest: 1s, flap_limit: 10, flap_window: 1s}}
"""


class Tidy(ContainerRunner):
    """Containers whose memory is cleared behind them, as a driver does: but for the untidy ones."""

    def marked(self, pod: Pod, last: int) -> tuple[int, ...]:
        """Nothing, as a rule."""
        return super().marked(pod, last) if pod.name.startswith(UNTIDY) else ()


class Piped(ServiceProgram):
    """A program that says what it says into a pipe: a file that it cannot write is then not its log."""

    _log: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Return as soon as there is a process; it is not ready yet."""
        ours, its = os.pipe()
        try:
            with self.log.open("ab") as log:
                self._log = await asyncio.create_subprocess_exec("cat", stdin=ours, stdout=log)
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "scrubber", *self.arguments),
                stdin=asyncio.subprocess.DEVNULL, stdout=its, stderr=its, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(ours)
            os.close(its)

    async def end(self, number: signal.Signals) -> int | None:
        """Send a signal and wait, for the end of its log as well; the exit status, or None when it did not run."""
        status = await super().end(number)
        log, self._log = self._log, None
        if log is not None:
            await log.wait()
        return status


class TrialNode:
    """Its programs, its pods, and what befalls them. ``service`` and ``plugin`` are where their figures are shown."""

    def __init__(self, port: int) -> None:
        """Nothing runs yet. The service has this port and the plugin the next, also after a restart."""
        self.service, self.plugin = f"{LOOPBACK}:{port}", f"{LOOPBACK}:{port + 1}"
        root = Path(tempfile.mkdtemp(prefix="autoclave-"))
        self.policy = root / "policy" / "trial.yaml"
        shown = ("--metrics-address", self.plugin)
        self.stage = Stage(GPUS, "1MiB", str(self.policy), root=root, runs=Tidy, flags=shown)
        plain = self.stage.service
        self.stage.service = Piped((*plain.arguments, "--metrics-address", self.service), plain.log)
        self.rule()
        self._strays: set[int] = set()

    def rule(self, mode: str = "enforce") -> None:
        """Write the policy's file, in one move; a mode that there is not makes it a wrong one."""
        self.policy.parent.mkdir(exist_ok=True)
        aside = self.policy.with_suffix(".new")
        aside.write_text(POLICY.replace("MODE", mode))
        aside.replace(self.policy)

    async def up(self) -> None:
        """Everything runs, every GPU is clean and offered."""
        await self.stage.start()
        await self.stage.start_node()
        await self.calm()

    async def calm(self) -> None:
        """Return as soon as every GPU is clean and offered."""
        for gpu in range(GPUS):
            await self.reach(gpu, lambda device: device.state == "clean")
        await self.stage.kubelet.until(lambda: self.stage.kubelet.allocatable.get(RESOURCE) == GPUS, WITHIN)

    async def reach(self, gpu: int, wanted: Callable[[views.DeviceStatus], bool]) -> views.DeviceStatus:
        """A GPU's status, as soon as it is as wanted."""
        status = await self.stage.settled(gpu, wanted, WITHIN)
        if not wanted(status):
            raise TimeoutError(f"GPU {gpu} is {status.state}: {status.why} {status.setback}")
        return status

    async def out(self, gpu: int) -> views.DeviceStatus:
        """A GPU's status, as soon as it is in quarantine."""
        return await self.reach(gpu, lambda device: device.quarantine is not None)

    async def run(self, name: str, gpus: int = 1) -> Pod:
        """A pod from its admission to its running container."""
        pod = Pod.of(name, {RESOURCE: gpus})
        if (await self.stage.kubelet.run(pod)).phase is not Phase.RUNNING:
            raise TimeoutError(f"pod {name} does not run: {pod.message or pod.statuses['main'].message}")
        return pod

    def given(self, pod: Pod) -> list[int]:
        """The GPUs that it has."""
        return [self.stage.uuids.index(uuid) for uuid in self.stage.kubelet.held(pod)["main"][RESOURCE]]

    def stray(self, gpu: int, container: str = "") -> int:
        """A process on a GPU, of this container or of none, that came there by itself.

        It is waited for where we stand: what is begun in a thread nobody would end once we were cancelled.
        """
        root, uuid = self.stage.simulated, self.stage.uuids[gpu]
        pid = tenants.occupy(root, uuid, b"", container) if container else tenants.zombie(root, uuid)
        self._strays.add(pid)
        return pid

    def end(self, pid: int) -> None:
        """End such a process, if it is still there."""
        self._strays.discard(pid)
        tenants.kill(pid)

    def limit_writes(self, *, to_nothing: bool) -> None:
        """Let no file of the service grow any more, or let them: what a full disk does."""
        most = 0 if to_nothing else resource.RLIM_INFINITY
        resource.prlimit(self.stage.service.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    async def clear_away(self) -> None:
        """Leave nothing behind."""
        for pid in tuple(self._strays):
            self.end(pid)
        await self.stage.clear_away(keep=False)


def free_ports() -> int:
    """The first of three ports of the loopback that nobody has, and that the kernel gives to nobody unasked."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        first = random.randrange(1024, lowest - PORTS)  # noqa: S311 - so that two who look at once find others
        if not any(_answers(port) for port in range(first, first + PORTS)):
            return first


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0
