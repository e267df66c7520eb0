"""Ten minutes on a busy node: no tenant ever finds what another one left, and none loses what is its own.

Both are told by the tenants themselves: each looks through all of its memory before it writes, fills it with its
fingerprint, and reads that again as long as it lives. So do host processes on free GPUs, importers of a pod's memory,
and what containers leave behind. ``SOAK_MINUTES`` and ``SOAK_SEED``, in the environment, set length and history.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from demo.stage import Stage
from demo.standins.pods import Pod
from tests.flows.node import Node
from tests.soak.aftermath import complaints, demand_none, demand_whole
from tests.soak.crowd import Crowd
from tests.soak.guests import Guests
from tests.soak.weather import Intruders, Weather

pytestmark = pytest.mark.night

GPUS, MEMORY = 8, "2MiB"
MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))
POLICY = "{selftest: {time: 200ms}}"  # all else is what is in force when nothing is asked for
PROGRESS_EVERY = 30.0
LOOKS_EVERY = 0.2
# A soak that does nothing passes nothing: so many a minute at least, about a third of what was seen on two busy cores.
AT_LEAST = {"tenants": 15, "hand-overs": 20, "starts": 40}
AT_LEAST_ONCE_IN = 5.0  # minutes, for everything that can befall a node
EVENTS = (
    *("ends: finished", "ends: deleted", "ends: force-deleted", "never started"),
    *("crashes", "kill -9 of a tenant", "left a process behind", "daemons left behind"),
    *("memory imported by another pod", "host process on a free GPU"),
    *("kubelet killed", "plugin killed", "service killed", "plugin told to end", "service told to end"),
    *("kubelet begins without its checkpoint", "checkpoint damaged", "PodResources asked", "scrub ordered by hand"),
    *(f"pods, {shape}" for shape in ("plain", "init", "sidecar", "pair", "only init")),
)
# What the service and the plugin may call an error while everything around them is killed, and why.
EXPECTED = {
    "every device is unhealthy: the scrub service does not answer": "it was killed",
    "the kubelet's checkpoint names two pods for one device": "it lost its checkpoint, or forgot an Allocate (R8)",
    "cannot find the pod that is about to start": "the checkpoint was damaged",
}


class Caught(AssertionError):
    """A tenant has told what it should never see."""


@dataclass
class Soak:
    """All that takes part."""

    node: Node
    guests: Guests
    crowd: Crowd
    weather: Weather
    intruders: Intruders
    seed: str

    @classmethod
    def on(cls, stage: Stage, seed: str) -> Soak:
        """Nothing has happened yet."""
        assert isinstance(stage.containers, Guests)
        node, guests = Node(stage), stage.containers
        crowd = Crowd(node, guests, seed)
        return cls(node, guests, crowd, Weather(node, guests, crowd, seed), Intruders(node, guests, crowd, seed), seed)

    async def run(self, seconds: float, progress: Callable[[str], None]) -> None:
        """So long, or until a tenant says a word."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            looking = [tasks.create_task(self._look()), tasks.create_task(self._tell(began, progress))]
            intruding = tasks.create_task(self.intruders.keep_coming())
            await self.weather.rage(lambda: time.monotonic() >= began + seconds)
            await intruding
            for task in looking:
                task.cancel()

    def demand_silence(self) -> None:
        """No tenant has said a word, and none was ended by somebody else."""
        words = [*self.guests.words.told(), *self.guests.seen.faults]
        if words:
            raise Caught("\n".join([f"SOAK_SEED={self.seed}", *words]))

    def figures(self) -> dict[str, int]:
        """What came about, counted."""
        seen, counters = self.guests.seen, self.crowd.counters
        ends = {f"ends: {how}": count for how, count in counters.ended.items()}
        totals = {"tenants": len(seen.tenants), "hand-overs": seen.handovers, "starts": seen.starts.total()}
        more = {"crashes": counters.crashes, "left a process behind": counters.zombies}
        return totals | more | ends | dict(self.crowd.befell)

    def report(self) -> str:
        """The same, and what was refused and what was waited for, for people."""
        counters = self.crowd.counters
        others = [("refused", counters.refused), ("waited", counters.waited), ("by hand", self.intruders.refused)]
        lines = [f"{count} {name}" for name, count in sorted(self.figures().items())]
        lines += [f"{name} {count}: {why}" for name, counts in others for why, count in counts.most_common(12)]
        return "\n  ".join([*lines, f"{counters.gave_up} pods were given up", f"{self.weather.killed} killed"])

    async def _look(self) -> None:
        while True:
            self.demand_silence()
            await asyncio.sleep(LOOKS_EVERY)

    async def _tell(self, began: float, progress: Callable[[str], None]) -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY)
            figures = self.figures()
            counted = ", ".join(f"{figures[name]} {name}" for name in AT_LEAST)
            killed = f"{self.weather.killed.total()} programs killed"
            progress(f"  {time.monotonic() - began:4.0f} s: {counted}, {killed}; no residue, nothing wiped")


@pytest.fixture
async def stage(tmp_path, soak) -> AsyncIterator[Stage]:
    if not soak:
        pytest.skip("it takes its time and runs with --soak only")
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"name: long-soak\ndefaults: {POLICY}\n")
    stage = Stage(GPUS, MEMORY, str(policy), runs=Guests)
    yield stage
    await stage.clear_away(keep="SOAK_KEEP" in os.environ)


@pytest.fixture
def progress(capsys) -> Callable[[str], None]:
    """To whoever waits for ten minutes."""

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)  # noqa: T201 - that is what it is for

    return say


@pytest.mark.timeout(60 * MINUTES + 600)
async def test_no_tenant_finds_what_another_one_left_and_none_loses_what_is_its_own(stage, seed, progress):
    soaking = Soak.on(stage, seed)
    progress(f"\n  {MINUTES:g} minutes on {stage.gpus} GPUs, SOAK_SEED={seed}")
    await soaking.node.up()
    with told_plainly():
        await soaking.run(60 * MINUTES, progress)
    await end(soaking)
    figures = soaking.figures()
    report = soaking.report()
    progress(f"  {report}\n  {soaking.guests.seen.faults or 'no residue, nothing wiped'}")
    demand_none(missing(figures, MINUTES))
    demand_none([*complaints(soaking.node), *errors(soaking.node)])


async def end(soaking: Soak) -> None:
    """Nobody is there any more: every GPU takes a pod once more, and is clean and offered after it."""
    await soaking.guests.end_guests()
    pods: list[Pod] = await demand_whole(soaking.node)
    for pod in pods:
        await soaking.node.kubelet.delete(pod)
    await soaking.node.clean()
    await soaking.node.offered(soaking.node.stage.gpus)
    soaking.demand_silence()
    demand_none([*soaking.crowd.counters.faults, *map(repr, soaking.node.kubelet.panics)])


def missing(figures: dict[str, int], minutes: float) -> list[str]:
    """What came about too seldom."""
    wanted = Counter({name: max(1, int(least * minutes)) for name, least in AT_LEAST.items()})
    wanted.update({name: 1 for name in EVENTS if minutes >= AT_LEAST_ONCE_IN})
    return [
        f"{name}: {figures.get(name, 0)}, at least {least}"
        for name, least in wanted.items()
        if figures.get(name, 0) < least
    ]


def errors(node: Node) -> list[str]:
    """Lines of both logs at the level of an error that nobody expects."""
    lines = [line for log in (node.stage.service.log, node.stage.plugin.log) for line in log.read_text().splitlines()]
    said = [(line, json.loads(line)) for line in lines if line.startswith("{")]
    return [line for line, it in said if it["level"] in ("error", "critical") and it["event"] not in EXPECTED]


@contextmanager
def told_plainly() -> Iterator[None]:
    """A group of errors with a word of a tenant in it is that word."""
    try:
        yield
    except* Caught as caught:
        words = next(_leaves(caught))
        raise Caught(str(words)) from None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
