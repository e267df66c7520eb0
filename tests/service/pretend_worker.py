"""A simulated worker: does the steps on a simulated GPU, takes time for each block, and can be killed between blocks.

It reports what it really did. ``test_false_workers`` has workers that report what they did not do.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import replace

from scrubber.core import plans
from scrubber.core.measured import Cleared, Mismatch, Restored, Scratched, Tested, Verified
from scrubber.core.model import Blame, Evicted, HealthRead, Holder, Outcome, ScrubPath, Step, StepResult
from scrubber.devices.base import Progress
from scrubber.steps.orders import Order, Report
from tests.service.node import BLOCK, BLOCKS, Gpu, Kind, Node, Process
from tests.service.truth import Truth

UNITS = 132
ALL = BLOCK * BLOCKS
TESTS = ("address", "arithmetic")
TAKES = {
    Step.EVICT: 0.1, Step.RESET: 0.5, Step.CLEAR: 0.2, Step.VERIFY: 0.1, Step.SCRATCH: 0.05, Step.SELFTEST: 0.1,
    Step.SETTINGS: 0.05, Step.HEALTH: 0.05,
}  # fmt: skip


class GoneError(Exception):
    """The worker was killed, or died."""


class PretendWorker:
    """One worker on one device."""

    def __init__(self, node: Node, truth: Truth, uuid: str) -> None:
        """Open the device."""
        self.node = node
        self.truth = truth
        self.gpu: Gpu = node.gpus[uuid]
        self.life = node.life
        self.process: Process = node.enter(uuid, Kind.WORKER, "worker")
        self.whole = True  # the last step reached all of the memory
        self._gone = asyncio.Event()

    @property
    def pid(self) -> int:
        """The pid of the worker."""
        return self.process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has the device open no more."""
        return not self.process.alive

    async def prepare(self) -> None:
        """Changes nothing on the GPU."""

    async def do(self, step: Step, path: ScrubPath, order: Order, deadline: float, on_progress: Progress) -> StepResult:
        """One step's result, always."""
        began = self.node.loop.time()
        if plans.STEPS[step].driver is not plans.Driver.BRIEFLY:
            self.truth.working(self.gpu, self.process)
        if step is Step.EVICT:
            self.gpu.deeds.clear()  # a path begins
        try:
            async with asyncio.timeout(deadline):
                report = await self.perform(step, order, on_progress)
        except TimeoutError:
            await self.kill()
            report = Report(Outcome.TIMED_OUT, f"{step.value} was late")
        except GoneError:
            await self.kill()
            report = Report(Outcome.DIED, f"{step.value} has no result")
        if report.outcome is Outcome.PASSED and self.whole:
            self.gpu.deeds.append(step)
        seconds = self.node.loop.time() - began
        return StepResult(step, path, report.outcome, seconds, report.detail, report.blame, report.findings)

    async def finish(self, last: StepResult) -> StepResult:
        """End the worker without a fault."""
        well = not self._gone.is_set()
        await self.kill()
        return last if well else replace(last, outcome=Outcome.DIED)

    async def kill(self) -> None:
        """End the worker. A dead service cannot kill a worker."""
        self._gone.set()
        if self.life == self.node.life:
            self.node.leave(self.process)

    async def perform(self, step: Step, order: Order, progress: Progress) -> Report:
        """Do on the pretended device what the real step does."""
        gpu = self.gpu
        if gpu.crashes and step is Step.CLEAR:
            raise GoneError
        if gpu.lost:
            return Report(Outcome.FAILED, "the device has fallen off its bus")
        if gpu.traps and step is Step.CLEAR:
            gpu.traps -= 1
            self.node.report(gpu.info.uuid, [13], pid=self.pid)
            return Report(Outcome.FAILED, "a kernel failed", Blame.UNDECIDED)
        await self.spend(10**6 if gpu.stalls or gpu.hangs else TAKES[step])
        match step:
            case Step.EVICT:
                return await self._evict(order)
            case Step.RESET:
                return self._reset()
            case Step.CLEAR:
                return await self._clear(order, progress)
            case Step.VERIFY:
                return await self._verify(order, progress)
            case Step.SCRATCH:
                return self._scratch()
            case Step.SELFTEST:
                return self._selftest()
            case Step.SETTINGS:
                self.truth.deed(gpu, step)
                gpu.drift = False
                return Report(Outcome.PASSED, findings=Restored())
            case Step.HEALTH:
                return Report(Outcome.PASSED, findings=HealthRead(gpu.vitals()))

    async def spend(self, seconds: float) -> None:
        """Let time pass, unless the worker or its service is killed meanwhile."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), seconds)
        if self._gone.is_set() or self.life != self.node.life:
            raise GoneError

    async def _evict(self, order: Order) -> Report:
        if self.gpu.blind:
            return Report(Outcome.FAILED, "cannot prove who uses the device", Blame.TENANT)
        if order.unused:
            return Report(Outcome.PASSED, findings=Evicted((), ()))
        found = [process for process in self.gpu.processes.values() if process is not self.process]
        holders = tuple(Holder(it.pid, it.started, it.name, it.container) for it in found)
        reported = [process for process in found if process.container is None and _condemned(process, order)]
        ended = [process for process in reported if not process.stuck]
        if reported:
            await self.spend(order.grace / 2)
        for process in ended:
            if process.alive and process.container is None:
                self.truth.killing(self.gpu, process)
                self.node.leave(process)
        left = [process for process in self.gpu.processes.values() if process is not self.process]
        evicted = Evicted(holders, tuple(process.pid for process in ended))
        if left:
            stuck = tuple(Holder(it.pid, it.started, it.name, it.container, "D") for it in reported if it in left)
            return Report(Outcome.FAILED, "still on the device", Blame.TENANT, replace(evicted, stuck=stuck))
        return Report(Outcome.PASSED, findings=evicted)

    def _reach(self) -> int:
        self.whole = not self.gpu.memory_unreachable
        return BLOCKS if self.whole else BLOCKS // 2

    def _reset(self) -> Report:
        self.truth.deed(self.gpu, Step.RESET)
        if self.gpu.reset_fails:
            return Report(Outcome.FAILED, "reset refused")
        self.gpu.remap_pending = self.gpu.reset_required = False
        self.gpu.leaked = 0
        return Report(Outcome.PASSED)

    async def _clear(self, order: Order, progress: Progress) -> Report:
        gpu = self.gpu
        reach = self._reach()
        residue = sum(block is not None for block in gpu.blocks) * BLOCK
        for block in range(reach):
            self.truth.deed(gpu, Step.CLEAR)
            gpu.blocks[block] = None
            progress((block + 1) * BLOCK, reach * BLOCK)
            await self.spend(TAKES[Step.CLEAR])
        wrong = Mismatch(7, 0xFF, 0xFE, 1) if gpu.bad_memory else None
        cleared = Cleared(reach * BLOCK, residue, BLOCKS * BLOCK, wrong, patterns=order.patterns)
        return Report(Outcome.PASSED, findings=cleared)

    async def _verify(self, order: Order, progress: Progress) -> Report:
        gpu = self.gpu
        reach = self._reach()
        wrong: Mismatch | None = None
        for block in range(reach):
            if gpu.blocks[block] is not None:
                wrong = wrong or Mismatch(block * BLOCK, 0, 0x41, BLOCK)
            progress((block + 1) * BLOCK, reach * BLOCK)
            await self.spend(TAKES[Step.VERIFY])
        verified = Verified(reach * BLOCK, order.patterns[-1:], BLOCKS * BLOCK, wrong)
        return Report(Outcome.PASSED, findings=verified)

    def _scratch(self) -> Report:
        self.truth.deed(self.gpu, Step.SCRATCH)
        if self.gpu.unit_unreachable:
            return Report(Outcome.PASSED, findings=Scratched(UNITS, UNITS - 1))
        self.gpu.chip = None
        return Report(Outcome.PASSED, findings=Scratched(UNITS, UNITS))

    def _selftest(self) -> Report:
        """Leave the memory unchanged, so that the self-test cannot hide an earlier failure to clear."""
        self.truth.deed(self.gpu, Step.SELFTEST)
        if self.gpu.computes_wrongly:
            return Report(Outcome.PASSED, findings=Tested((), deviating=(7,)))
        return Report(Outcome.PASSED, findings=Tested(TESTS, covered_bytes=ALL, units=UNITS))


def _condemned(process: Process, order: Order) -> bool:
    began, ended = order.tenancy or (math.inf, -math.inf)
    return order.terminate_leftovers if began <= process.started <= ended else order.terminate_foreign


class AMinuteOfTests(PretendWorker):
    """Its self-test takes as long as the real one."""

    async def perform(self, step: Step, order: Order, progress: Progress) -> Report:
        """As the others do it."""
        if step is Step.SELFTEST:
            await self.spend(60)
        return await super().perform(step, order, progress)


class RestoreWorker:
    """A worker that gives back what an interrupted reset left pending on a device."""

    pid = 7
    has_ended = True

    def __init__(self, node: Node, uuid: str) -> None:
        """Nothing is done yet."""
        self._node = node
        self._uuid = uuid
        node.restored_by_worker.append(uuid)

    async def do(self, step: Step, path: ScrubPath, order: Order, deadline: float, on_progress: Progress) -> StepResult:
        """Take a second, or fail for as long as the node says so."""
        del order, deadline, on_progress
        await asyncio.sleep(1.0)
        if self._node.restores_fail:
            return StepResult(step, path, Outcome.FAILED, 1.0, "it is refused")
        self._node.unrestored.discard(self._uuid)
        return StepResult(step, path, Outcome.PASSED, 1.0)

    async def prepare(self) -> None:
        """Open nothing."""

    async def finish(self, last: StepResult) -> StepResult:
        """End well."""
        return last

    async def kill(self) -> None:
        """End."""
