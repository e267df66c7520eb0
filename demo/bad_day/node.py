"""The node of the trial: the real service and the real plugin with their metrics, and the kubelet stand-in."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from demo.containers import ContainerRunner
from demo.installation import RESOURCE
from demo.programs import ServiceProgram
from demo.stage import Stage
from demo.standins.pods import Phase, Pod
from scrub_api import views
from scrubber.devices.simulated import drills

GPUS = 4
LOOPBACK = "127.0.0.1"
NAME, CLUSTER = "gpu-node-1", "trial"  # the labels that scraping adds
WITHIN = 300.0  # seconds to wait for a condition: long, for slow machines
UNTIDY = "untidy"  # pods with this prefix leave data behind

# The default policy with shorter timeouts, so that a day fits into minutes. Words in capitals are replaced. The fence
# only watches, but in an act: so Allocate waits, and may refuse, whoever plays the day. In the mode observe it refuses
# a pod only if the machine is too busy to look at a GPU in time, so it has more time in that mode.
POLICY = """\
name: trial
description: The default with less patience, for trials
defaults:
  mode: MODE
  fence: {mode: FENCE}
  budgets: {allocate: PATIENCE}
  evict: {grace: 250ms}
  selftest: {time: 250ms}
  quarantine: {probation: {first: 1s, flap_limit: 10}}
"""


class TidyContainers(ContainerRunner):
    """Containers whose memory is cleared when they end, as a driver does, except for untidy pods."""

    def marked(self, pod: Pod, last: int) -> tuple[int, ...]:
        """No marks, except for untidy pods."""
        return super().marked(pod, last) if pod.name.startswith(UNTIDY) else ()


class PipedProgram(ServiceProgram):
    """A program that logs into a pipe: a file size limit on the program then does not hit its log."""

    _log: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process and return; the process is not ready yet."""
        reads, writes = os.pipe()
        try:
            with self.log.open("ab") as log:
                self._log = await asyncio.create_subprocess_exec("cat", stdin=reads, stdout=log)
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "autoclave", *self.arguments),
                stdin=asyncio.subprocess.DEVNULL, stdout=writes, stderr=writes, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(reads)
            os.close(writes)

    async def end(self, number: signal.Signals) -> int | None:
        """Send a signal, then wait for the process and its log. Return the exit status, or None if it did not run."""
        status = await super().end(number)
        log, self._log = self._log, None
        if log is not None:
            await log.wait()
        return status


class TrialNode:
    """The programs, the pods and the faults of the node.

    ``service`` and ``plugin`` are the addresses of their metrics.
    """

    def __init__(self, port: int) -> None:
        """Prepare the node. The service uses this port and the plugin the next one, also after a restart."""
        self.service, self.plugin = f"{LOOPBACK}:{port}", f"{LOOPBACK}:{port + 1}"
        root = Path(tempfile.mkdtemp(prefix="autoclave-"))
        self.policy = root / "policy" / "trial.yaml"
        shown = ("--metrics-address", self.plugin)
        self.stage = Stage(GPUS, "1MiB", str(self.policy), root=root, runs=TidyContainers, flags=shown)
        plain = self.stage.service
        self.stage.service = PipedProgram((*plain.arguments, "--metrics-address", self.service), plain.log)
        self.write_policy()
        self._processes: set[int] = set()

    def write_policy(self, mode: str = "enforce", *, fence: str = "watch") -> None:
        """Replace the policy file in one step. An unknown mode makes the file invalid."""
        self.policy.parent.mkdir(exist_ok=True)
        aside = self.policy.with_suffix(".new")
        patience = "4s" if mode == "observe" else "1s"
        aside.write_text(POLICY.replace("MODE", mode).replace("FENCE", fence).replace("PATIENCE", patience))
        aside.replace(self.policy)

    async def start_node(self) -> None:
        """Start everything, and wait until every GPU is clean and offered."""
        await self.stage.start()
        await self.stage.start_node()
        await self.wait_until_clean()

    async def wait_until_clean(self) -> None:
        """Wait until every GPU is clean and offered."""
        for gpu in range(GPUS):
            await self.reach(gpu, lambda device: device.state == "clean")
        await self.stage.kubelet.until(lambda: self.stage.kubelet.allocatable.get(RESOURCE) == GPUS, WITHIN)

    async def reach(self, gpu: int, wanted: Callable[[views.DeviceStatus], bool]) -> views.DeviceStatus:
        """The status of a GPU, as soon as the condition holds."""
        status = await self.stage.settled(gpu, wanted, WITHIN)
        if not wanted(status):
            raise TimeoutError(f"GPU {gpu} is {status.state}: {status.why} {status.setback}")
        return status

    async def observes(self) -> None:
        """Wait until the service has read a policy that hands out GPUs without a proof."""
        async with self.stage.admin() as admin, asyncio.timeout(WITHIN):
            seen = 0
            while True:
                service = (await admin.status([], newer_than=seen, wait=0.2 if seen else 0.0)).service
                if any(sentence.startswith("mode observe") for sentence in service.concessions):
                    return
                seen = service.ledger_rows

    async def quarantined(self, gpu: int) -> views.DeviceStatus:
        """The status of a GPU, as soon as it is in quarantine."""
        return await self.reach(gpu, lambda device: device.quarantine is not None)

    async def run(self, name: str, gpus: int = 1) -> Pod:
        """Run a pod until its container runs."""
        pod = Pod.of(name, {RESOURCE: gpus})
        if (await self.stage.kubelet.run(pod)).phase is not Phase.RUNNING:
            raise TimeoutError(f"pod {name} does not run: {pod.message or pod.statuses['main'].message}")
        return pod

    def gpus_of(self, pod: Pod) -> list[int]:
        """The GPUs that the pod has."""
        return [self.stage.uuids.index(uuid) for uuid in self.stage.kubelet.held(pod)["main"][RESOURCE]]

    def occupy(self, gpu: int, container: str = "") -> int:
        """Start a process on a GPU without a grant, in this container or in none.

        The call blocks: a process that a thread starts would survive a cancellation.
        """
        pid = self.stage.occupy(self.stage.uuids[gpu], container)
        self._processes.add(pid)
        return pid

    def end(self, pid: int) -> None:
        """End such a process, if it still runs."""
        self._processes.discard(pid)
        drills.kill(pid)

    def limit_writes(self, *, to_nothing: bool) -> None:
        """Forbid the service to write to any file, as a full disk does, or allow it again."""
        most = 0 if to_nothing else resource.RLIM_INFINITY
        resource.prlimit(self.stage.service.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    async def clear_away(self) -> None:
        """End all processes and remove all files."""
        for pid in tuple(self._processes):
            self.end(pid)
        await self.stage.clear_away(keep=False)
