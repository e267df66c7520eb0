"""The service releases the driver during a reset, and always reacquires it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from scrubber.devices import blocking_calls
from scrubber.devices.base import ShortageError
from scrubber.devices.simulated.simulated_backend import Simulated
from scrubber.jobs import driver_release
from scrubber.jobs.driver_release import DriverRelease
from scrubber.observe.driver_calls import DriverCalls
from tests.patience import WITHIN


class Sticky(Simulated):
    """Releases the driver when the test says so, and counts the releases."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.may, self.asked, self.back = threading.Event(), threading.Event(), threading.Event()
        self.away = 0

    def release_driver(self) -> None:
        self.asked.set()
        assert self.may.wait(WITHIN)
        self.away += 1

    def reacquire_driver(self) -> None:
        self.away -= 1
        self.back.set()


@pytest.fixture
def backend(tmp_path):
    return Sticky(tmp_path)


@pytest.fixture
def release(backend):
    return DriverRelease(DriverCalls(backend, "boot", patience=1.0))


async def away(release, backend):
    async with release.during_reset():
        raise AssertionError("nobody was to get here" if backend.away != 1 else "the reset failed")


@pytest.mark.parametrize("impatience", ["cancelled", "too late"])
async def test_a_caller_that_gives_up_leaves_no_release_behind(release, backend, impatience):
    asking = asyncio.create_task(away(release, backend))
    await asyncio.to_thread(backend.asked.wait, 5)
    if impatience == "cancelled":
        asking.cancel()
    with pytest.raises((asyncio.CancelledError, blocking_calls.UnresponsiveError)):
        await asking
    backend.may.set()
    assert await asyncio.to_thread(backend.back.wait, 5)
    assert backend.away == 0


async def test_the_driver_is_reacquired_once_a_shortage_has_ended(release, backend, monkeypatch):
    monkeypatch.setattr(driver_release, "SHORTAGE_PAUSE", 0.01)
    ask, refusals = release._driver.caller.ask, iter([ShortageError("no thread can be started")] * 3)

    async def short(key, question, deadline) -> object:
        if key.startswith("reacquire") and (error := next(refusals, None)):
            raise error
        return await ask(key, question, deadline)

    monkeypatch.setattr(release._driver.caller, "ask", short)
    backend.may.set()
    async with release.during_reset():
        assert backend.away == 1
    await release.reacquired()
    assert next(refusals, None) is None
    assert backend.away == 0


async def test_the_driver_is_reacquired_when_a_reset_fails(release, backend):
    backend.may.set()
    with pytest.raises(AssertionError):
        await away(release, backend)
    assert await asyncio.to_thread(backend.back.wait, 5)
    assert backend.away == 0
