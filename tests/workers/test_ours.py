"""Workers know each other as children of one zygote, wherever their service runs."""

from __future__ import annotations

import asyncio
import math

from scrubber.core.model import Blame, Outcome, ScrubPath, Step
from scrubber.devices.base import DeviceHandling
from scrubber.devices.simulated import drills
from scrubber.steps.base import Order
from scrubber.workers.nursery import Nursery
from scrubber.workers.wire import Assignment
from tests.devices.conftest import Bank

SEIZES = Order(terminate_foreign=True, terminate_leftovers=True, tenancy=(0.0, math.inf), grace=0.05)
FIRST_PROCESS = 1  # as in a container of its own, where it inherits every process that has lost its parent


async def test_a_worker_of_pid_1_ends_no_other_worker(bank: Bank) -> None:
    """Descent from that process identifies no worker."""
    address, files = bank.backend.address(bank.first, DeviceHandling()), bank.backend.files(bank.first)
    assignment = Assignment(address, files, whole_node=False, service=FIRST_PROCESS)
    nursery = Nursery(warm_cuda=False)
    busy, other = [await nursery.start_worker(assignment) for _ in range(2)]
    drills.stall_clears(bank.root, bank.first)
    begun = asyncio.Event()
    clearing = asyncio.create_task(busy.do(Step.CLEAR, ScrubPath.FAST, Order(key="00"), 30.0, lambda *_: begun.set()))
    await begun.wait()
    result = await other.do(Step.EVICT, ScrubPath.FAST, SEIZES, 30.0, lambda *_: None)
    done = clearing.done()
    for worker in (other, busy):
        await worker.kill()
    await clearing
    await nursery.close()
    await asyncio.sleep(0)  # the loop closes pipes one turn after their end
    assert (result.outcome, result.blame, result.findings.terminated) == (Outcome.FAILED, Blame.TENANT, ())
    assert [holder.pid for holder in result.findings.holders] == [busy.pid]
    assert not done
