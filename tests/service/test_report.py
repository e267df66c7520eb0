"""What operators are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrubber.core.model import Path, State
from scrubber.errors import InvalidRequest, Reason


@pytest.fixture
async def reporter(world):
    return world.life.reporter


@pytest.mark.parametrize("name", ["1", "GPU-0001", "gpu-0001", "GPU-0001"[:8]])
async def test_a_device_is_found_by_index_uuid_and_prefix(reporter, name):
    assert reporter.find(name) == "GPU-0001"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("GPU-", Reason.INVALID_REQUEST),
        ("7", Reason.UNKNOWN_DEVICE),
        ("GPU-7", Reason.UNKNOWN_DEVICE),
        ("", Reason.UNKNOWN_DEVICE),
        ("²", Reason.UNKNOWN_DEVICE),
    ],
)
async def test_a_name_that_means_no_device_or_several_is_refused(reporter, name, reason):
    with pytest.raises(InvalidRequest) as refused:
        reporter.find(name)
    assert refused.value.reason is reason


async def test_a_slice_is_found_by_its_gpu_and_its_number_and_by_its_gpu_when_it_is_alone_there(world, reporter):
    for number, gpu in enumerate(world.node.gpus.values()):
        gpu.info = replace(gpu.info, index=3, slice=number, parent="GPU-p", mig=True)
    await world.life.monitor.round()
    assert [reporter.find(name) for name in ("3:0", "3:1")] == [*world.uuids]
    with pytest.raises(InvalidRequest) as refused:
        reporter.find("3")
    assert refused.value.reason is Reason.INVALID_REQUEST
    world.node.gpus[world.uuids[0]].info = replace(world.node.gpus[world.uuids[0]].info, index=0)
    await world.life.monitor.round()
    assert reporter.find("3") == world.uuids[1]


async def test_a_uuid_wins_over_a_longer_uuid_that_begins_like_it(world, reporter):
    gpu = world.node.gpus[world.uuids[0]]
    world.node.gpus["GPU-00001"] = replace(gpu, info=replace(gpu.info, uuid="GPU-00001", index=2))
    await world.life.monitor.round()
    assert reporter.find("GPU-0000") == "GPU-0000"


async def test_status_is_ordered_by_index_and_tells_the_ledger(world, reporter):
    status = reporter.status(["1", "0"])
    assert [device.index for device in status.devices] == [0, 1]
    assert [device.state for device in status.devices] == ["clean", "clean"]
    assert (status.service.ledger_rows, status.service.ledger_fault) == (world.life.ledger.seq, "")
    assert status.service.ledger_head == world.life.ledger.head.hash


async def test_status_shows_a_job_its_progress_and_where_it_will_end(world, reporter):
    running = await world.service.scrub("GPU-0000", Path.SLOW)
    while running.total == 0:
        await anext(running.updates())
    job = reporter.device("GPU-0000").job
    assert (job.id, job.step, job.total_bytes) == (running.id, "clear", 2**22)
    await running.finished.wait()
    assert reporter.device("GPU-0000").job is None
    assert reporter.device("GPU-0000").receipt.path == "slow"


async def test_a_ledger_that_cannot_be_written_is_told_until_it_can(world, reporter):
    world.life.disk.full = True
    world.intrude("GPU-0000")
    await world.life.monitor.round()
    assert "disk is full" in reporter.status([]).service.ledger_fault
    world.life.disk.full = False
    await world.life.monitor.round()
    assert reporter.status([]).service.ledger_fault == ""


async def test_history_is_bounded_newest_last_and_of_one_device_or_all(reporter):
    everything = await reporter.history("", 0.0, 0)
    assert [entry.seq for entry in everything] == sorted(entry.seq for entry in everything)
    assert {entry.device for entry in everything} == {"GPU-0000", "GPU-0001"}
    newest = await reporter.history("1", 0.0, 3)
    assert [entry.device for entry in newest] == ["GPU-0001"] * 3
    assert newest[-1].kind
    assert newest[-1].text


async def test_an_explanation_ends_where_the_device_is(world, reporter):
    await world.service.quarantine("GPU-0000", "it smells of smoke", "ann")
    told = await reporter.explain("GPU-0000")
    assert told.device.state == State.QUARANTINED.value
    assert "it smells of smoke" in told.entries[-1].text
    assert told.advice
    assert told.policy_why
