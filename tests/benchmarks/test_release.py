"""What is published of a tenant's end was really seen: by moments in order, and by a proof that was there in time."""

from __future__ import annotations

import asyncio
import os
import random
import select
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import processes, release, rig
from demo.stage import Stage
from demo.standins.pods import Pod
from scrubber.ledger.ledger_rows import LedgerRow
from scrubber.node import clock
from tests.patience import WITHIN


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with rig.service(1, policy="fast") as it:
        await it.start_node()
        yield it


@pytest.mark.night
async def test_a_release_is_measured_as_scrub_and_rest(stage, monkeypatch) -> None:
    close, before = stage.containers.close_sandbox, []

    async def closed(pod: Pod) -> None:
        """All others have ended."""
        before.append(clock.now().uptime)
        await close(pod)

    monkeypatch.setattr(stage.containers, "close_sandbox", closed)
    end = await release.one_end(stage, 0.0)
    assert before[0] < end.gone < end.told < clock.now().uptime
    assert before[0] < end.started < end.passed < end.told
    assert end.detection == pytest.approx((end.told - end.gone) - (end.passed - end.started))


@pytest.mark.night
async def test_every_pod_of_a_churn_is_counted(stage) -> None:
    churn = await release.churned(stage, 0.0, 2, random.Random(1))  # noqa: S311 - the same pauses each time
    assert len(churn.clean) == 2
    assert len(churn.allocates) + churn.refused >= 2  # on a busy machine one may have been refused


@pytest.mark.parametrize(
    ("at", "clean"), [(0.5, False), (1.5, False), (2.5, True), (3.5, False), (4.5, True)]
)  # fmt: skip
def test_a_device_whose_last_row_is_a_proof_is_clean(at: float, clean: bool) -> None:  # noqa: FBT001 - a case
    kinds = ("scrub-started", "scrub-passed", "granted", "scrub-passed")
    rows = [LedgerRow(number, "GPU-0", 0.0, float(number), "", kind, "", "") for number, kind in enumerate(kinds, 1)]
    assert release.was_clean(rows, at) is clean


async def test_the_end_of_a_process_is_seen() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "3600")
    before = clock.now().uptime
    with processes.ends([process.pid]) as ends:
        process.kill()
        async with asyncio.timeout(WITHIN):
            [end] = await ends
    assert before < end < clock.now().uptime
    await process.wait()


def test_a_crowd_of_processes_ends_with_all_its_members() -> None:
    with ExitStack() as stack:
        with processes.crowd(3, 5) as leader:
            members = [int(it.name) for it in Path("/proc").iterdir() if it.name.isdigit() and _in(it, leader)]
            opened = [{file.name for file in Path(f"/proc/{pid}/fd").iterdir()} for pid in members]
            watched = [os.pidfd_open(pid) for pid in members]
            for descriptor in watched:
                stack.callback(os.close, descriptor)
        assert len(members) == 4  # who started them is one more
        assert all({"3", "4", "5", "6", "7"} <= files for files in opened)
        for descriptor in watched:
            assert select.select([descriptor], [], [], 10.0)[0] == [descriptor]


def _in(process: Path, session: int) -> bool:
    try:
        return os.getsid(int(process.name)) == session
    except ProcessLookupError:
        return False
