"""The tenants of the long soak would see it: each of their checks is shown what it is there for."""

from __future__ import annotations

import asyncio

import pytest

from demo.handout import RESOURCE
from demo.standins.pods import Container, ContainerKind, Pod
from demo.standins.runtime import CannotCreate
from plugin.kubelet_api import deviceplugin_pb2
from scrubber.devices.simulated import creation, layout
from tests.patience import WITHIN
from tests.soak.guests import Guests

pytestmark = pytest.mark.night

ANSWER = deviceplugin_pb2.ContainerAllocateResponse()
SIZE = 2**20


@pytest.fixture
async def guests(tmp_path):
    """Two GPUs without a service: nobody scrubs anything."""
    creation.create(tmp_path / "gpus", 2, SIZE)
    it = Guests(tmp_path / "gpus")
    yield it
    await it.clear_away()


@pytest.fixture
def gpus(guests):
    return {RESOURCE: tuple(place.info().uuid for place in layout.places(guests._simulated))}


@pytest.fixture
def memory(guests):
    return layout.places(guests._simulated)[1].memory


def poke(memory, at, data):
    with memory.open("r+b") as file:
        file.seek(at)
        file.write(data)


async def begun(guests, gpus, kind=ContainerKind.APP, pod=None):
    pod = pod or Pod("pod", (Container("main", {RESOURCE: 2}, kind),))
    await guests.start(pod, pod.containers[0], gpus, ANSWER)
    return pod


async def test_a_tenant_that_is_left_alone_fills_its_memory_and_says_nothing(guests, gpus, memory):
    pod = await begun(guests, gpus)
    assert memory.read_bytes().count(pod.uid.encode()) == SIZE // 64
    await guests.stop(pod, pod.containers[0])
    await begun(guests, gpus, pod=pod)  # its own fingerprint is no stranger's
    await guests.stop(pod, pod.containers[0])
    assert (guests.words.told(), guests.seen.faults) == ([], [])


@pytest.mark.parametrize("kind", [ContainerKind.APP, ContainerKind.INIT])
async def test_what_another_tenant_left_is_told_before_anything_is_written(guests, gpus, memory, kind):
    pod = await begun(guests, gpus)
    await guests.stop(pod, pod.containers[0])
    poke(memory, 0, bytes(SIZE - 1))
    poke(memory, SIZE - 1, b"!")
    poke(layout.places(guests._simulated)[0].memory, 0, bytes(SIZE))  # the other one is clean
    with pytest.raises(CannotCreate):
        await begun(guests, gpus, kind)
    told = "".join(guests.words.told())
    assert "RESIDUE" in told
    assert "offset 0xfffff" in told
    assert memory.read_bytes()[-1:] == b"!"


@pytest.mark.parametrize("wrong", [bytes(64), b"!"], ids=["zeros", "one byte"])
async def test_a_byte_that_changes_under_a_tenant_is_told_while_it_lives(guests, gpus, memory, wrong):
    pod = await begun(guests, gpus)
    [process] = guests._running[pod.uid, "main"]
    poke(memory, SIZE // 2, wrong)
    await asyncio.wait_for(process.wait(), WITHIN)
    await guests.stop(pod, pod.containers[0])
    assert "WIPED" in "".join(guests.words.told())
    assert "ended with 1" in guests.seen.faults.pop()


async def test_a_byte_that_changes_under_an_importer_after_its_owner_has_gone_is_told_at_its_end_at_the_latest(
    guests, gpus
):
    pod = await begun(guests, gpus)
    async with guests.importer((pod.uid, "main"), "another") as came:
        assert came
        await guests.stop(pod, pod.containers[0])
        poke(layout.places(guests._simulated)[0].memory, 0, bytes(64))
    assert "WIPED" in "".join(guests.words.told())


async def test_a_tenant_that_is_ended_by_somebody_else_is_a_fault_and_one_that_the_soak_ends_is_none(guests, gpus):
    pod = await begun(guests, gpus)
    guests.shoot(pod.uid, "main")
    await guests.stop(pod, pod.containers[0])
    assert guests.seen.faults == []
    await begun(guests, gpus, pod=pod)
    [process] = guests._running[pod.uid, "main"]
    process.terminate()
    await process.wait()
    await guests.stop(pod, pod.containers[0])
    assert "ended with -15" in guests.seen.faults.pop()
