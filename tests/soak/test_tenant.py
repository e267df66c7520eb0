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


async def test_a_tenant_left_alone_fills_its_memory_and_reports_nothing(guests, gpus, memory):
    pod = await begun(guests, gpus)
    assert memory.read_bytes().count(pod.uid.encode()) == SIZE // 64
    await guests.stop(pod, pod.containers[0])
    await begun(guests, gpus, pod=pod)  # its own fingerprint is no stranger's
    await guests.stop(pod, pod.containers[0])
    assert (guests.words.reports(), guests.seen.faults) == ([], [])


@pytest.mark.parametrize("kind", [ContainerKind.APP, ContainerKind.INIT])
async def test_a_tenant_reports_residue_before_it_writes(guests, gpus, memory, kind):
    pod = await begun(guests, gpus)
    await guests.stop(pod, pod.containers[0])
    poke(memory, 0, bytes(SIZE - 1))
    poke(memory, SIZE - 1, b"!")
    poke(layout.places(guests._simulated)[0].memory, 0, bytes(SIZE))  # the other one is clean
    with pytest.raises(CannotCreate):
        await begun(guests, gpus, kind)
    reports = "".join(guests.words.reports())
    assert "RESIDUE" in reports
    assert "offset 0xfffff" in reports
    assert memory.read_bytes()[-1:] == b"!"


@pytest.mark.parametrize("wrong", [bytes(64), b"!"], ids=["zeros", "one byte"])
async def test_a_living_tenant_reports_a_changed_byte(guests, gpus, memory, wrong):
    pod = await begun(guests, gpus)
    [process] = guests._running[pod.uid, "main"]
    poke(memory, SIZE // 2, wrong)
    await asyncio.wait_for(process.wait(), WITHIN)
    await guests.stop(pod, pod.containers[0])
    assert "WIPED" in "".join(guests.words.reports())
    assert "ended with 1" in guests.seen.faults.pop()


async def test_an_importer_reports_a_changed_byte_after_its_owners_end(guests, gpus):
    pod = await begun(guests, gpus)
    async with guests.importer((pod.uid, "main"), "another") as came:
        assert came
        await guests.stop(pod, pod.containers[0])
        poke(layout.places(guests._simulated)[0].memory, 0, bytes(64))
    assert "WIPED" in "".join(guests.words.reports())


async def test_a_tenant_that_something_else_has_ended_is_a_fault(guests, gpus):
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
