"""The service notices the end of a pod by the kernel's event: no round comes, and no request."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from scrubber.core.model import State
from scrubber.devices.simulated import layout
from scrubber.devices.simulated.simulated_backend import Simulated
from tests.patience import WITHIN
from tests.pod_groups import roots

HOLD = 'exec 9<>"$1"; echo; read -r _'  # has the memory of a GPU open


@pytest.fixture(autouse=True)
def _no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first round, the next one comes in an hour."""
    monkeypatch.setattr(Simulated, "pace", 3600.0)


@pytest.fixture
async def watching(house) -> AsyncIterator[None]:
    """The monitor runs, and its only round is over."""
    running = asyncio.create_task(house.built.monitor.run())
    before = house.built.monitor.ended
    while house.built.monitor.ended is before:  # noqa: ASYNC110 - a round tells nobody of its end
        await asyncio.sleep(0)
    yield
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.fixture
async def container(house, running_pod: tuple[str, int]) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A process of the pod that got the first GPU, and has it open."""
    uuid = house.uuids[0]
    async with house.scrubber() as scrubber:
        await scrubber.acquire([uuid], announced=True)
        await scrubber.start([uuid], running_pod[0])
    enter = "".join(f"echo $$ > {root}/kubepods/pod{running_pod[0]}/cgroup.procs; " for root in roots().values())
    words = ["sh", "-c", enter + HOLD, "sh", str(layout.find(house.config.simulation, uuid).memory)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220 - it prints at once
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.usefixtures("watching")
@pytest.mark.skipif("second" not in roots(), reason="no control groups of the second version here")
async def test_the_end_of_a_pod_is_an_event(house, running_pod, container) -> None:
    """Its sandbox ends first: the process that has ended is not the last one of the pod."""
    uuid, (pod, sandbox) = house.uuids[0], running_pod
    upkeep, records = house.built.service.upkeep, house.built.ledger.records
    await upkeep.reconcile(uuid)
    os.kill(sandbox, signal.SIGKILL)
    os.waitid(os.P_PID, sandbox, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - at once
    await upkeep.reconcile(uuid)
    while house.built.monitor._process_ended:  # noqa: ASYNC110 - what follows from its end is over
        await asyncio.sleep(0)
    assert (records[uuid].state, records[uuid].tenancy.container) == (State.IN_USE, pod)
    container.kill()
    async with asyncio.timeout(WITHIN):
        await house.built.ledger.changed.until(lambda: records[uuid].state is State.CLEAN)
