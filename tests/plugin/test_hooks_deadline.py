"""Allocate ends within its one limit, however the scrub service fails, on virtual time."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest

from ground.errors import AutoclaveError, NotReady, Reason, Refused, Unreachable
from plugin.devices import Device, MigStrategy, own_devices
from plugin.hooks import ALLOCATE_WITHIN, Hooks
from plugin.listing import Listing
from scrub_api.device_messages import ReportedDevice, ReportedDevices
from tests.service.virtual import VirtualLoop

GPU = ReportedDevice("GPU-0000", healthy=True, clean=True, index=0, resource="nvidia.com/gpu", numa_node=0)
LATE = Unreachable("the scrub service did not answer in time", reason=Reason.TIMED_OUT)
STOPS = NotReady(Reason.SHUTTING_DOWN, "the scrub service is shutting down")
GONE = Unreachable("cannot reach the scrub service")
NO = Refused(Reason.IN_USE, "cannot hand out GPU-0000: it is still in use")


class SlowService:
    """Answers each request as late as its caller allows; with another error than ``LATE``, after ``pause`` seconds."""

    def __init__(self, *answers: AutoclaveError, pause: float = 0.0) -> None:
        self.answers, self.pause = list(answers), pause

    async def watch(self):
        yield ReportedDevices((GPU,), 60.0)
        await asyncio.Event().wait()

    async def acquire(self, _ids, *, timeout, **_):  # noqa: ASYNC109 - as the client of the service has it
        error = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await asyncio.sleep(max(timeout, 0.0) if error is LATE else min(self.pause, timeout))
        raise error

    async def reachable(self, within):
        await asyncio.sleep(within)
        return False


class RestartingService(SlowService):
    """Answers from the second ``back`` on."""

    def __init__(self, back: float) -> None:
        super().__init__(GONE)
        self.back = back

    async def acquire(self, _ids, *, timeout, **_):  # noqa: ASYNC109, ARG002 - as the client of the service has it
        if asyncio.get_running_loop().time() < self.back:
            raise GONE
        return ()

    async def reachable(self, within):
        await asyncio.sleep(min(within, self.back - asyncio.get_running_loop().time()))
        return asyncio.get_running_loop().time() >= self.back


async def took(service) -> float:
    """Seconds until a request is answered, while the kubelet reads no list."""
    listing = Listing(service, own_devices("nvidia.com", MigStrategy.NONE))
    following = asyncio.create_task(listing.follow())
    await listing.until_known()
    reading = listing.changes("nvidia.com/gpu")
    await anext(reading)
    clock = asyncio.get_running_loop().time
    began = clock()
    [device] = listing.shown("nvidia.com/gpu")
    assert isinstance(device, Device)
    with nullcontext() if isinstance(service, RestartingService) else pytest.raises(AutoclaveError):
        await Hooks(service, listing).acquire("nvidia.com/gpu", [device])
    seconds = clock() - began
    following.cancel()
    await reading.aclose()
    await asyncio.wait({following})
    return seconds


@pytest.mark.parametrize(
    "service",
    [
        SlowService(LATE),
        SlowService(NO, pause=4.5),
        SlowService(STOPS, LATE),
        SlowService(GONE, LATE),
        SlowService(STOPS, STOPS, GONE, LATE, pause=0.3),
        SlowService(GONE),
    ],
    ids=["never answers", "refuses late", "stops, then hangs", "is away, then hangs", "stops again", "is away"],
)
def test_allocate_ends_within_its_limit(service):
    loop = VirtualLoop()
    assert loop.run_until_complete(took(service)) <= ALLOCATE_WITHIN + 0.001
    loop.close()


def test_a_pod_waits_for_a_service_away_3_seconds():
    """On a real node, the start of the service takes two seconds of a busy machine. A refusal fails the pod."""
    loop = VirtualLoop()
    assert loop.run_until_complete(took(RestartingService(back=loop.time() + 3.0))) == pytest.approx(3.0, abs=0.1)
    loop.close()
