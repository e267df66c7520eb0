"""The service releases the driver during a reset, and always reacquires it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from scrubber.devices import calls
from scrubber.devices.base import ShortageError
from scrubber.devices.simulated.backend import Simulated
from scrubber.node.processes import Processes
from scrubber.observe import driver_release
from scrubber.observe.observer import Observer
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
def observer(backend, tmp_path):
    processes = Processes(Path("/proc"), backend.container_of, whole_node=False)
    return Observer(backend, processes, "boot", tmp_path, 0.0, patience=1.0)


async def away(observer):
    async with observer.driver_released():
        raise AssertionError("nobody was to get here" if observer.backend.away != 1 else "the reset failed")


@pytest.mark.parametrize("impatience", ["cancelled", "too late"])
async def test_a_caller_that_gives_up_leaves_no_release_behind(observer, backend, impatience):
    asking = asyncio.create_task(away(observer))
    await asyncio.to_thread(backend.asked.wait, 5)
    if impatience == "cancelled":
        asking.cancel()
    with pytest.raises((asyncio.CancelledError, calls.UnresponsiveError)):
        await asking
    backend.may.set()
    assert await asyncio.to_thread(backend.back.wait, 5)
    assert backend.away == 0


async def test_the_driver_is_reacquired_once_a_shortage_has_ended(observer, backend, monkeypatch):
    monkeypatch.setattr(driver_release, "SHORTAGE_PAUSE", 0.01)
    ask, refusals = observer._caller.ask, iter([ShortageError("no thread can be started")] * 3)

    async def short(key, question, deadline) -> object:
        if key.startswith("reacquire") and (error := next(refusals, None)):
            raise error
        return await ask(key, question, deadline)

    monkeypatch.setattr(observer._caller, "ask", short)
    backend.may.set()
    async with observer.driver_released():
        assert backend.away == 1
    await observer.driver_reacquired()
    assert next(refusals, None) is None
    assert backend.away == 0


async def test_the_driver_is_reacquired_when_a_reset_fails(observer, backend):
    backend.may.set()
    with pytest.raises(AssertionError):
        await away(observer)
    assert await asyncio.to_thread(backend.back.wait, 5)
    assert backend.away == 0
