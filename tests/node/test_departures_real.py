"""A tenancy in real control groups: what looks like its end and is none, and its end, told by eyes and pidfds alone."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from policies.policy_model import Policy
from scrubber.core import events as ev
from scrubber.core import next_action
from scrubber.core.answers import Proceed, RecordFirst, TendAnswer
from scrubber.core.model import Owner
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from scrubber.devices.simulated import layout
from scrubber.devices.simulated.simulated_backend import Simulated
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.observed_since import ObservedSince
from scrubber.observe.observer import Observer
from scrubber.observe.owner_ends import Ends
from tests.core import lives
from tests.node.control_groups import ID, UID, Group, Process, pod
from tests.patience import WITHIN
from tests.pod_groups import roots

HOLD = 'exec 9<>"$1"; echo; exec sleep 60'
GONE = RecordFirst(ev.Released("its owner is gone"))


class Watched:
    """On one GPU that is a pod's."""

    def __init__(self, root: Path) -> None:
        layout.create(root, 1, 2**20)
        backend = Simulated(root)
        [device] = backend.inventory()
        self.memory = layout.find(root, device.uuid).memory
        self.ends = Ends(roots().get("second"))
        processes = Processes(Path("/proc"), backend.container_of, whole_node=False)
        self.observer = Observer(
            DriverCalls(backend, "boot"), processes, root, ObservedSince(0.0), lives.no_reset, ends=self.ends
        )
        owned = lives.live(lives.GRANTED, ev.PutInUse(Owner(UID, lives.NOW, seen=True)))
        self.record: Record = replace(owned, device=device)

    async def look(self) -> TendAnswer:
        """What is to be done now."""
        facts = await self.observer.look(self.record, Purpose.CHANGE)
        here = replace(self.record, incarnation=facts.incarnation)
        return next_action.tend(here, facts, Policy(), lives.later(1e6), 0.0)

    async def left(self) -> frozenset[str]:
        async with asyncio.timeout(WITHIN):
            return await self.ends.next()


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    it = Watched(tmp_path / "gpus")
    yield it
    it.ends.close()
    it.observer.driver.backend.close()


@pytest.fixture
def hold(watched: Watched) -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Starts a process in a group that has the GPU open."""
    started: list[subprocess.Popen[bytes]] = []

    def run(place: Path) -> subprocess.Popen[bytes]:
        words = ["sh", "-c", f"echo $$ > {place}/cgroup.procs; {HOLD}", "sh", str(watched.memory)]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE))
        assert started[-1].stdout is not None
        started[-1].stdout.readline()
        return started[-1]

    yield run
    for process in started:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@pytest.mark.parametrize(
    ("driver", "sandbox_id", "name"),
    [
        ("systemd, burstable", "c3" * 32, f"cri-containerd-{ID}.scope"),
        ("systemd, in kind", ID, f"crio-{'c3' * 32}.scope/container"),
        ("cgroupfs, guaranteed", "c3" * 32, ID),
    ],
)
async def test_only_the_end_of_the_sandbox_releases_a_pod(
    driver, sandbox_id, name, group: Group, enter: Callable[[Path], Process], watched: Watched, hold
) -> None:
    """The runtime may take its time to collect the sandbox; it is the end of the pod all the same."""
    sandbox = enter(group(f"{pod(driver)}/{sandbox_id}"))
    for _ in range(3):  # each in the group of a container that ends
        container = hold(group(f"{pod(driver)}/{name}"))
        assert await watched.look() == Proceed()
        end(container)
        assert await watched.look() == Proceed(), "it has no holder, and the pod is there"
    waiting = asyncio.create_task(watched.left())
    assert await watched.look() == Proceed()
    assert not waiting.done(), "the pod is there: nothing is to be done"
    sandbox.end()
    assert await waiting == {watched.record.device.uuid}
    assert await watched.look() == GONE


@pytest.mark.parametrize("group", ["second"], indirect=True)
async def test_a_sandbox_need_not_end_last(
    group: Group, enter: Callable[[Path], Process], watched: Watched, hold
) -> None:
    place = pod("systemd, burstable")
    sandbox, container = enter(group(f"{place}/{'c3' * 32}")), hold(group(f"{place}/{ID}"))
    assert await watched.look() == Proceed()
    waiting = asyncio.create_task(watched.left())
    sandbox.end()
    assert await watched.look() == Proceed()
    assert not waiting.done(), "the pod is there"
    end(container)
    assert await waiting == {watched.record.device.uuid}
    assert await watched.look() == GONE
