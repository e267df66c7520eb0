"""A listing that follows a scrub service which the test speaks for; registrations whose waits all outlast a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from demo.standins.kubelet import Kubelet
from plugin.devices import MigStrategy, own_devices
from plugin.listing import Listing
from plugin.registration import endpoint, kubelet, sockets
from scrub_api import client
from tests.live import Service
from tests.patience import WITHIN
from tests.plugin.live_plugin import Plugin
from tests.plugin.scrub_server import ScrubServer, gpu


@pytest.fixture
def long_waits(monkeypatch):
    """Timers longer than any test: code that waits for a timer instead of an event fails, also on a slow machine."""
    for room, wait in (
        (endpoint, "GRACE"),
        (endpoint, "PROOF"),
        (kubelet, "ASK"),
        (kubelet, "REGISTER"),
        (sockets, "POLL_EVERY"),
    ):
        monkeypatch.setattr(room, wait, 6 * WITHIN)


@pytest.fixture
async def door(short_tmp):
    """Open, with nothing to say yet."""
    door = ScrubServer(short_tmp)
    await door.open()
    yield door
    await door.close()


@pytest.fixture
async def scrub_server(short_tmp):
    """A service for a plugin that runs as a process; the test speaks for it. It has two devices."""
    (short_tmp / "run").mkdir(mode=0o700)
    scrub_server = ScrubServer(short_tmp / "run")
    scrub_server.say(gpu(0), gpu(1))
    await scrub_server.open()
    yield scrub_server
    await scrub_server.close()


@pytest.fixture
async def service(short_tmp):
    """The real service, with two clean GPUs."""
    service = await asyncio.to_thread(Service, short_tmp, 2)
    for index in range(2):
        await asyncio.to_thread(service.settled, index, "clean")
    yield service
    await asyncio.to_thread(service.stop)


@pytest.fixture(name="kubelet")
async def running_kubelet(short_tmp):
    """A kubelet that runs."""
    it = Kubelet(short_tmp)
    await it.start()
    yield it
    await it.stop()


@pytest.fixture
async def plugin(short_tmp):
    """Start plugins; all are ended with the test."""
    started: list[Plugin] = []

    async def plugin(*flags: object, **more: str) -> Plugin:
        started.append(await Plugin(short_tmp, *flags, **more).start())
        return started[-1]

    yield plugin
    for each in started:
        await each.clear_away()


@pytest.fixture
def followed(short_tmp):
    """A listing whose task runs as long as the context does."""

    @asynccontextmanager
    async def followed(strategy: MigStrategy = MigStrategy.NONE) -> AsyncIterator[Listing]:
        async with client.ScrubberClient(short_tmp / "scrubber.sock") as scrubber:
            listing = Listing(scrubber, own_devices("nvidia.com", strategy))
            task = asyncio.create_task(listing.follow())
            try:
                yield listing
            finally:
                task.cancel()
                await asyncio.wait({task})

    return followed


class Reader:
    """One stream of a listing, as the kubelet's is: it asks for the next list as soon as it has this one."""

    def __init__(self, listing: Listing, resource: str = "nvidia.com/gpu") -> None:
        self.lists: list[dict[str, bool]] = []
        self._came = asyncio.Event()
        self._task = asyncio.create_task(self._read(listing, resource))

    async def _read(self, listing: Listing, resource: str) -> None:
        async for shown in listing.changes(resource):
            self.lists.append({device.uuid: device.healthy for device in shown})
            self._came.set()

    async def until(self, holds, within=WITHIN):
        """Wait for a list."""
        async with asyncio.timeout(within):
            while not any(holds(each) for each in self.lists):
                self._came.clear()
                await self._came.wait()

    def forget(self):
        """Only lists that come from now on count."""
        self.lists.clear()

    async def close(self):
        self._task.cancel()
        await asyncio.wait({self._task})


@pytest.fixture
async def read():
    """Start to read a listing."""
    readers: list[Reader] = []

    def read(*args: Any) -> Reader:  # noqa: ANN401 - handed on as it comes
        readers.append(Reader(*args))
        return readers[-1]

    yield read
    for reader in readers:
        await reader.close()
