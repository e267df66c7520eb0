"""What a scrub on the fast path costs an NVIDIA GPU: passes over its memory, and how often NVML is opened.

The steps are those of the service, in the order and with the words of the default policy. The libraries of
the driver are stand-ins under the real pynvml and CuPy: the figures count, and no time is measured.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure
from ground.documents import strict_json
from policies.policy_model import Policy
from scrubber.core import plans
from scrubber.core.measured import Cleared, Verified
from scrubber.core.model import Findings, MemoryManager, Outcome, ScrubPath, Step
from scrubber.cuda import card, cuda_card
from scrubber.cuda.patterns import Pattern
from scrubber.devices.base import Counts
from scrubber.devices.nvidia.address import WorkerTarget
from scrubber.devices.nvidia.gpu import NvidiaGpu
from scrubber.jobs import path_run
from scrubber.steps import step_functions
from scrubber.steps.orders import Order, StepContext
from tests.fakes.cuda.fixtures import in_this_process, libraries
from tests.fakes.cuda.machine import SIZE, equip
from tests.fakes.nvml.build import build
from tests.fakes.nvml.host import Root
from tests.fakes.nvml.machine import Machine


@dataclass
class Cost:
    """What a job has cost so far."""

    swept: int = 0  # bytes, of all passes
    memory: int = 0  # bytes that were covered
    searched: int = 0  # bytes of the census

    @property
    def passes(self) -> float:
        """How often all of the memory was gone over, without the census."""
        return (self.swept - self.searched) / self.memory


class CountingCard(cuda_card.CudaCard):
    """Adds up what is swept."""

    def __init__(self, uuid: str, cost: Cost) -> None:
        super().__init__(cuda_card.driver_of(uuid), uuid)
        self._cost = cost

    def sweep(
        self, kind: card.Sweep, pattern: Pattern, spans: Iterable[card.Span], step: card.Step
    ) -> tuple[card.Found, ...]:
        """As the worker does it."""

        def counted(size: int) -> None:
            self._cost.swept += size
            step(size)

        return super().sweep(kind, pattern, spans, counted)


async def measure(*, quick: bool) -> list[Figure]:
    """One job. More of them would cost the same."""
    del quick
    with tempfile.TemporaryDirectory(prefix="autoclave-") as directory:
        machine = Machine.h200(Path(directory) / "machine", 1)
        os.environ |= machine.environment
        ctypes.CDLL(str(build(Path(directory) / "lib")), mode=ctypes.RTLD_GLOBAL)
        gpu, root = machine.gpu(0), Root.of(machine, Path(directory) / "root")
        with in_this_process(equip(Path(directory) / "cuda", [gpu], libraries())):
            first_seen, resets = f"{directory}/settings/{gpu.uuid}.json", f"{directory}/resets"
            place = WorkerTarget(gpu.uuid, str(root.path), gpu.pci, gpu.minor, None, first_seen, resets)
            cost = run(strict_json.encode(place).decode(), Policy(), (SIZE, 0, 0))
        opened = sum(call == "nvmlInitWithFlags" for _, call, _ in machine.calls())
    about = "nvidia, a scrub on the fast path, default policy"
    return [
        Figure(f"{about}: passes over the memory", cost.passes, "passes", 1, "4"),
        Figure(f"{about}: NVML opened and closed", opened, "times", 1, "1"),
    ]


def run(place: str, policy: Policy, counts: Counts | None) -> Cost:
    """All steps of the path, those on memory in one worker, the others in another."""
    cost, path = Cost(), ScrubPath.FAST

    def opened(uuid: str, pci_address: str, manager: MemoryManager) -> card.Card:
        cuda_card.only(uuid)
        found = CountingCard(uuid, cost)
        found.begin(pci_address, manager)
        return found

    order = path_run.order_for(policy, path, secrets.token_hex(16), None)
    on_memory = _bench(NvidiaGpu(place, lambda: None, open_card=opened, memory=counts))
    beside = _bench(NvidiaGpu(place, lambda: None))
    for step in plans.PLANS[path]:
        match _done(step, order, on_memory if plans.STEPS[step].driver is plans.Driver.FOR_MEMORY else beside):
            case Cleared() as clear:
                cost.searched = clear.searched_bytes or 0
            case Verified() as verify:
                cost.memory = verify.covered_bytes
    return cost


def _bench(gpu: NvidiaGpu) -> StepContext:
    return StepContext(gpu, lambda: (), lambda _done, _total: None)


def _done(step: Step, order: Order, bench: StepContext) -> Findings | None:
    report = step_functions.perform(step, order, bench)
    if report.outcome is not Outcome.PASSED:
        raise RuntimeError(f"{step.value} failed: {report.detail}")
    return report.findings
