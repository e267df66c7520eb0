"""What the service or its node lacks is no fault of a GPU."""

import asyncio
import inspect
import resource

import pytest

from ground.errors import AutoclaveError, NotReady, Reason
from scrub_api import admin_client, client
from scrubber.observe.driver_calls import DriverCalls
from tests.live import Service
from tests.patience import WITHIN

STANDARD = 3  # stdin, stdout and stderr stay open: below this limit a process can open no other file
PATIENCE = inspect.signature(DriverCalls).parameters["patience"].default  # a device that is silent for longer is sick


@pytest.fixture
def service(short_tmp):
    service = Service(short_tmp, 2, "--policy", "fast")
    for gpu in range(2):
        service.settled(gpu, "clean")
    yield service
    service.stop()


async def refusal(scrubber, uuid):
    """The first refusal of a request: an observation from before the shortage may still admit one."""
    while True:
        try:
            await scrubber.acquire([uuid], exclusive=True)
            await scrubber.release([uuid])
        except AutoclaveError as error:
            return error


async def listed(scrubber, *, healthy):
    async for now in scrubber.watch():
        if all(device.healthy is healthy for device in now.devices):
            return


async def test_exhausted_files_quarantine_no_gpu_and_are_named(service):
    pid = service.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    async with (
        asyncio.timeout(WITHIN),
        client.ScrubberClient(service.run_dir / "scrubber.sock") as scrubber,
        admin_client.AdminClient(service.run_dir / "admin.sock") as admin,
    ):
        first, second = (device.device for device in (await admin.status()).devices)
        await listed(scrubber, healthy=True)  # this client is connected now, and needs no other file
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (STANDARD, limits[1]))
        error = await refusal(scrubber, first)
        assert error.reason is Reason.SHORTAGE
        assert "too many files open: raise its limit of open files (LimitNOFILE)" in error.message
        with pytest.raises(NotReady, match="LimitNOFILE"):
            await scrubber.start([second])
        await listed(scrubber, healthy=False)
        await asyncio.sleep(2 * PATIENCE)
        assert {device.state for device in (await admin.status()).devices} == {"clean"}
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        await listed(scrubber, healthy=True)
        await scrubber.acquire([first], exclusive=True)
        assert "quarantined" not in {entry.kind for entry in await admin.history()}
