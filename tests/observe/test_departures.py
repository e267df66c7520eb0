"""Who leaves a device is missed at once: the next look at it does not wait for a round."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scrubber.core import events as ev
from scrubber.core.model import Moment, Owner
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from scrubber.devices.simulated import drills, layout
from scrubber.devices.simulated.simulated_backend import Simulated
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.observed_since import ObservedSince
from scrubber.observe.observer import Observer
from scrubber.observe.owner_ends import Ends
from scrubber.service import monitor
from scrubber.service.monitor import Monitor
from tests.core import lives
from tests.patience import WITHIN

BETWEEN_ROUNDS = 60.0
POD, OTHER = "pod-of-departures", "another-pod-of-departures"


class Place:
    """A simulated GPU, the eyes on it, and who is there."""

    def __init__(self, root: Path) -> None:
        layout.create(root, 2, 2**20)
        backend = Simulated(root)
        self.root = root
        self.uuid = backend.inventory()[0].uuid
        self.ends = Ends()
        processes = Processes(Path("/proc"), backend.container_of, whole_node=False)
        self.observation = Observer(
            DriverCalls(backend, "boot"), processes, root, ObservedSince(0.0), lives.no_reset, ends=self.ends
        )
        self.pids: list[int] = []

    def record(self, owner: str | None) -> Record:
        events = [ev.PutInUse(Owner(owner, lives.NOW, seen=True))] if owner else []
        return replace(lives.live(lives.GRANTED, *events), device=self.observation.driver.backend.inventory()[0])

    def occupy(self, container: str = "") -> int:
        args = (self.root, self.uuid, b"")
        self.pids.append(drills.occupy(*args, container) if container else drills.zombie(*args))
        return self.pids[-1]

    def end(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    async def left(self) -> frozenset[str]:
        async with asyncio.timeout(WITHIN):
            return await self.ends.next()


@pytest.fixture
async def place(tmp_path):
    it = Place(tmp_path)
    yield it
    it.ends.close()
    it.observation.driver.backend.close()
    for pid in it.pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.mark.parametrize("container", ["", OTHER], ids=["a process of nobody", "another pod's container"])
async def test_the_end_of_a_holder_is_reported(place, container):
    pid = place.occupy(container)
    await place.observation.look(place.record(None), Purpose.CHANGE)
    place.end(pid)
    assert await place.left() == {place.uuid}


async def test_a_starting_pod_is_followed(place):
    elsewhere = place.observation.driver.backend.inventory()[1].uuid
    place.pids.append(drills.occupy(place.root, elsewhere, b"", POD))  # of the pod, and not on this GPU
    await place.observation.look(place.record(None), Purpose.START, starting_pod=POD)
    assert place.ends._watched[place.uuid].whom == place.pids[0]


async def test_a_free_device_follows_no_process(place):
    await place.observation.look(place.record(None), Purpose.CHANGE)
    assert place.ends._watched == {}


class Notebook:
    """Stands where the service would: writes down who is looked after."""

    def __init__(self, *, fails: bool = False) -> None:
        self.tended: asyncio.Queue[str] = asyncio.Queue()
        self.upkeep = self
        self.context = SimpleNamespace(ledger=SimpleNamespace(records={}))
        self.count = 0
        self._fails = fails

    async def reconcile(self, device: str) -> None:
        self.count += 1
        self.tended.put_nowait(device)
        if self._fails:
            raise OSError("the disk is full")

    def moves(self, device: str, at: float) -> None:
        self.context.ledger.records = {device: SimpleNamespace(since=Moment(at, at))}


class Roundless(Monitor):
    """Looks after nobody by itself."""

    async def round(self, stagger: float = 0.0) -> None:
        """Nothing but departures calls for a look."""


@pytest.fixture
async def watch():
    """A monitor whose rounds do nothing."""
    tasks: list[asyncio.Task[None]] = []

    def start(notebook: Any, ends: Ends) -> None:  # noqa: ANN401 - stands in for the service
        no_holder: Any = None
        tasks.append(asyncio.create_task(Roundless(notebook, no_holder, BETWEEN_ROUNDS, ends).run()))

    yield start
    for task in tasks:
        task.cancel()


async def test_a_failed_observation_is_repeated(place, watch):
    notebook = Notebook(fails=True)
    watch(notebook, place.ends)
    for _ in range(3):
        place.ends._report(place.uuid)
        async with asyncio.timeout(WITHIN):
            await notebook.tended.get()


class Hanging(Notebook):
    """A look at one device does not end before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()

    async def reconcile(self, device: str) -> None:
        await super().reconcile(device)
        if device == "hangs":
            await self.may_end.wait()


async def test_a_hanging_observation_delays_no_other_device(place, watch):
    notebook = Hanging()
    watch(notebook, place.ends)
    place.ends._report("hangs")
    async with asyncio.timeout(WITHIN):
        assert await notebook.tended.get() == "hangs"
        for _ in range(5):  # another one, that somebody leaves again and again
            place.ends._report("restless")
            assert await notebook.tended.get() == "restless"
        for device in ("restless", "hangs", "left"):
            place.ends._report(device)
        assert [await notebook.tended.get() for _ in range(2)] == ["left", "restless"]
        notebook.may_end.set()
        assert await notebook.tended.get() == "hangs", "who left it while it was looked after is not forgotten"


async def test_departures_without_a_change_slow_the_observations(place, watch, monkeypatch):
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def brief(seconds: float) -> None:
        if seconds == BETWEEN_ROUNDS:
            await sleep(seconds)
        pauses.append(seconds)
        await sleep(0)

    notebook = Notebook()
    monkeypatch.setattr("scrubber.service.monitor.asyncio.sleep", brief)
    watch(notebook, place.ends)
    for _ in range(8):
        place.ends._report(place.uuid)
        await notebook.tended.get()
        await sleep(0.001)
    paused = [pause for pause in pauses if pause]
    assert paused[:3] == [monitor.ALARM_PAUSE, 2 * monitor.ALARM_PAUSE, 4 * monitor.ALARM_PAUSE]
    assert max(paused) == monitor.MAX_END_PAUSE
    notebook.moves(place.uuid, 1.0)
    reconcile = notebook.reconcile

    async def changing(device: str) -> None:
        notebook.moves(device, 2.0)
        await reconcile(device)

    monkeypatch.setattr(notebook, "reconcile", changing)
    place.ends._report(place.uuid)
    await notebook.tended.get()
    await sleep(0.001)
    assert pauses[-1] == 0.0
