"""Random histories against whole nodes, each from one seed: pods and attackers, kubelet, plugin and service in trouble.

    python -m tests.soak.campaign --seconds 7200 --seed 1      seeds 1, 2, 3, ... for two hours
    python -m tests.soak.campaign --only 17                    the moves of seed 17 again
    python -m tests.soak.campaign --only 17 --about wipes      a short history of what may end in a wipe
    python -m tests.soak.campaign --only 17 --about asks       one of processes that open GPUs of others: takes root

A history is one node of 2 to 8 simulated GPUs; for root, two of three nodes have a fence. It alternates between trouble
and calm. In trouble everything may happen that ``tests/move_table.py`` lists for it. Then all attackers, pods and
faults end, and each GPU must be clean and offered again. In the calm that follows, pods come and go in ordinary ways,
and none may be refused. ``judge.py`` says what must not be, and what docs/attacks.md names as left. The same
seed makes the same moves, not the same timing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import TextIO

from demo.installation import RESOURCE
from demo.stage import Stage
from demo.standins.pods import Phase, Pod
from ground.errors import LedgerUnavailable
from scrub_api import views
from scrubber.core import ownership
from scrubber.devices.simulated import drills, loops
from scrubber.ledger import database, ledger_rows, reading
from scrubber.words import event_text
from tests import forking
from tests.flows.node import Node
from tests.move_table import ASKING, ATTACKS, FAULTS
from tests.soak.hostile import Hostile, uptime
from tests.soak.judge import BETWEEN, Judge, complaints
from tests.soak.moves import ASKS, WIPES, Moves, answer
from tests.soak.pods import Pods, within
from tests.trace import MOVE, NODE, ROW, Event, Trace

BRISK = "paths: {first_look: fast}, clear: {passes: zero}, evict: {grace: 200ms}, budgets: {allocate: 1s}"
DEFAULT = "selftest: {time: 200ms}"  # everything else is what is in force without a policy file
FENCES = ("off", "watch", "refuse")  # by the seed, for a user who can make one
POLICIES = (BRISK, BRISK, f"{BRISK}, model: per-container", DEFAULT)
MEMORY, MEMORY_BYTES = "512KiB", 2**19
ROUNDS, TROUBLE, CALM = (2, 3), (20, 40), (4, 6)  # rounds of a history; moves of a round
ABOUT = {"wipes": WIPES, "asks": ASKS}
GAP = 0.4  # seconds at most from one move to the next
PROVEN_WITHIN = 60.0  # seconds from a use to the next proof, when nobody is there any more
HEALS_WITHIN = 240.0  # seconds: a scrub that failed is tried again after a minute at the latest
HANGS_AFTER = 900.0


@dataclass
class Summary:
    """Of all histories."""

    counts: Counter[str] = field(default_factory=Counter)
    moves: Counter[str] = field(default_factory=Counter)
    attackers: Counter[str] = field(default_factory=Counter)
    pods: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def report(self) -> str:
        """The summary as text for people."""
        tables = {"": self.counts, "move: ": self.moves, "attacker: ": self.attackers, "refused: ": self.refused}
        tables |= {"pods: ": self.pods, "exception: ": self.excused}
        lines = [f"{count:7} {name}{what}" for name, table in tables.items() for what, count in table.most_common()]
        return "\n".join([*lines, f"{len(self.findings):7} findings", *self.findings])


class History:
    """One node from its first to its last moment."""

    def __init__(self, seed: int, root: Path, *, about: str = "") -> None:
        """``about``: a short history, of one thing alone."""
        dice, self._about = dice_of(str(seed), "node"), about
        self.seed, self.step, self.moves = str(seed), 0, Counter[str]()
        self._began = uptime()
        self.trace = Trace(lambda: uptime() - self._began)
        self.policy, gpus, grouped = dice.choice(POLICIES), dice.choice((2, 2, 3, 4, 8)), dice.random() < 0.5
        file = root / "policy.yaml"
        fenced = seed % len(FENCES) and loops.can_attach(MEMORY_BYTES)
        self.stage = Stage(gpus, MEMORY, str(file), root=root / "node", runs=Hostile, fenced=bool(fenced))
        self.fence = FENCES[seed % len(FENCES)] if self.stage.groups is not None else FENCES[0]
        file.write_text(f"name: campaign\ndefaults: {{{self.policy}, fence: {{mode: {self.fence}}}}}\n")
        assert isinstance(self.stage.containers, Hostile)
        self.runtime, self.kubelet = self.stage.containers, self.stage.kubelet
        self.runtime.tenants.grouped = grouped and os.geteuid() == 0 and self.stage.groups is None
        self.runtime.tenants.top = self.stage.groups
        self.runtime.proven, self.runtime.freed = self._proven, self._freed
        self.node = Node(self.stage)
        self.pods = Pods(self.node, self.runtime)
        self.judge = Judge(self.runtime, self.kubelet, refuses=self.fence == "refuse")
        self._moves = Moves(self.node, self.pods, self.judge, root / "copy")
        self.runtime.say = partial(self.trace.say, NODE)
        named_by = "control groups" if self.runtime.tenants.grouped else "environments"
        self.trace.say(NODE, f"{gpus} GPUs, {named_by}, fence: {self.fence}, {self.policy}")

    def story(self) -> str:
        """All that happened, with the rows of the ledger as far as they can be read. The judge has not seen them."""
        with (
            suppress(LedgerUnavailable, sqlite3.Error),
            closing(database.connect(self.stage.ledger, "mode=ro")) as rows,
        ):
            for row in ledger_rows.entries(database.rows(rows)):
                words = self.judge.named(event_text.tell(row.event))
                self.trace.events.append(Event(row.at.uptime - self._began, ROW, words, row.device))
        return self.trace.story()

    @property
    def findings(self) -> list[str]:
        """The findings of this history."""
        return self.judge.findings

    # -- its course

    async def run(self) -> None:
        """All rounds, or until there is a finding."""
        course = dice_of(self.seed, "course")
        try:
            async with asyncio.timeout(HANGS_AFTER):
                await self.node.up()
                await self._moves.make("keep", dice_of(self.seed, "keep"))
                if self._about:
                    weights = ABOUT[self._about]
                    moves = course.sample(tuple(weights), counts=weights.values(), k=sum(weights.values()))
                    await (self._one_by_one if weights is WIPES else self._round)(moves)
                    if weights is ASKS:  # of GPUs that are clean again, while the groups of their pods are there
                        await self._one_by_one(["asks", "asks", "asks", "asks_late", "asks_while_away"])
                    await self._settle()
                for _ in range(0 if self._about else course.randint(*ROUNDS)):
                    self.pods.calm = False
                    table = course.choice((ATTACKS, ATTACKS | FAULTS))
                    table = table | ASKING if self.runtime.fenced else table
                    weights = {name: it.weight for name, it in table.items()}
                    moves = course.choices(tuple(weights), tuple(weights.values()), k=course.randint(*TROUBLE))
                    await self._round(moves)
                    await self._settle()
                    self.pods.calm = True
                    await self._round(["pod"] * course.randint(*CALM))
                    await self._settle()
        except* Found:
            pass
        except* Exception as errors:  # noqa: BLE001 - whatever it is, it is a finding
            self.findings.append("".join(traceback.format_exception(errors)))
        self.findings.extend(f"a line in a log: {it}" for it in complaints(self.node))

    async def _one_by_one(self, moves: Sequence[str]) -> None:
        """Each move begins when the GPUs that it takes are clean."""
        for name in moves:
            for number in range(self.stage.gpus):
                await self.stage.settled(number, _is_clean, HEALS_WITHIN)
            self.step += 1
            await self._move(self.step, name, dice_of(self.seed, self.step))
            self.demand_nothing()

    async def _round(self, moves: Sequence[str]) -> None:
        """Each move begins some moment after the one before, and takes its time."""
        async with asyncio.TaskGroup() as under_way:
            for name in moves:
                self.step += 1
                dice = dice_of(self.seed, self.step)
                under_way.create_task(self._move(self.step, name, dice))
                await asyncio.sleep(dice.uniform(0, GAP))
                self.demand_nothing()
        self.demand_nothing()

    async def _move(self, step: int, name: str, dice: random.Random) -> None:
        label = f"{name}: {step}{' (calm)' if self.pods.calm else ''}"
        self.trace.say(MOVE, f"{label} begins")
        self.moves[name] += 1
        done = await self._moves.make(name, dice)
        self.trace.say(MOVE, f"{label}: {done}")

    def demand_nothing(self) -> None:
        """The history ends with the first finding."""
        self.judge.look()
        self.findings.extend(f"the kubelet died: {it!r}" for it in self.kubelet.panics)
        self.findings.extend(self.pods.counters.faults)
        if self.findings:
            raise Found

    async def _settle(self) -> None:
        """Everybody goes; then each GPU must be clean and offered."""
        await self.runtime.end_attackers()
        await self.runtime.end_guests()
        for uuid in self.stage.uuids:
            drills.heal(self.stage.simulated, uuid)
        for pod in list(self.kubelet.pods.values()):
            await self.kubelet.delete(pod)
        async with within(HEALS_WITHIN, self._what):
            await answer(self.node)
            for number in range(self.stage.gpus):
                await self._come_back(number)
            await self.kubelet.registered(RESOURCE, HEALS_WITHIN)
            await self.node.offered(self.stage.gpus)
            await self._take_all()
            for number in range(self.stage.gpus):
                device = await self.stage.settled(number, _is_clean, HEALS_WITHIN)
                if not _is_clean(device):
                    self.findings.append(f"GPU {number} is not clean: {device.state}, {device.why}, {device.setback}")
            await self.node.offered(self.stage.gpus)
        self.runtime.forget_groups()
        self.trace.say(NODE, "settled")
        self._moves.written.clear()
        self._audit()
        self.demand_nothing()

    def _audit(self) -> None:
        """Check that the ledger is not damaged."""
        found = reading.verify(self.stage.ledger)
        if found.broken is not None or found.set_aside:
            self.findings.append(f"the ledger is damaged: {found}")

    def _what(self) -> str:
        return f"each GPU to be clean and offered: {self.kubelet.devices(RESOURCE)}"

    async def _come_back(self, number: int) -> None:
        """Nobody is there, so a scrub ends well."""
        await self.stage.settled(number, _rests, HEALS_WITHIN)
        device = await self.stage.settled(number, _has_no_owner, ownership.STARTS_WITHIN + 2)
        if device.state == "quarantined":
            excuse = BETWEEN if device.device in self._moves.written else None
            self.judge.take(f"{device.device} is quarantined: {device.why}", excuse)
            async with self.stage.admin() as admin:
                async for _ in admin.reinstate([device.device], "", "the campaign"):
                    pass
        elif device.state != "clean":
            return
        used = self.judge.used(device.device)
        await self.stage.settled(number, lambda it: self._proven(it.device) > used, PROVEN_WITHIN)
        if self._proven(device.device) < used:
            self.findings.append(f"{device.device} was used, and is clean by a proof from before")
        if not self.judge.examine(device.device):
            async with self.stage.admin() as admin:  # an exception, which would be one of each pod from now on
                async for _ in admin.scrub([device.device]):
                    pass

    def _proven(self, gpu: str) -> float:
        return self._last(gpu, "scrub-passed")

    def _freed(self, gpu: str) -> float:
        return self._last(gpu, "released", "scrub-passed")

    def _last(self, gpu: str, *kinds: str) -> float:
        """The uptime of the last row of these kinds."""
        with closing(database.connect(self.stage.ledger, "mode=ro")) as connection:
            rows = (row.uptime for row in database.rows(connection) if row.device == gpu and row.kind in kinds)
            return max(rows, default=0.0)

    async def _take_all(self) -> None:
        """Run a pod on all GPUs, so that GPUs whose pods never came are asked for again."""
        pod = Pod.of("all", {RESOURCE: self.stage.gpus})
        self.runtime.names[pod.uid], excused = pod.name, self.judge.excused.total()
        await self.kubelet.run(pod)
        self.judge.look()
        if pod.phase is not Phase.RUNNING and self.judge.excused.total() == excused:
            self.judge.take(f"no pod gets all GPUs: {pod.status} {pod.statuses}", self._moves.slow())
        await self.kubelet.delete(pod)


def dice_of(seed: str, name: object) -> random.Random:
    """Dice for one who decides something: the same for the same seed and name."""
    return random.Random(f"{seed}/{name}")  # noqa: S311 - no secret comes of it


class Found(Exception):
    """There is a finding."""


def _is_clean(device: views.DeviceStatus) -> bool:
    return device.state == "clean"


def _has_no_owner(device: views.DeviceStatus) -> bool:
    """An admitted start whose container never came counts for a while, or until somebody asks for the GPU."""
    return _rests(device) and device.state != "in_use"


def _rests(device: views.DeviceStatus) -> bool:
    """It is clean, or belongs to a pod that never came, or waits for a person."""
    return device.state in ("clean", "granted", "in_use", "quarantined") and device.job is None


async def play(seed: int, summary: Summary, *, keep: bool, about: str = "") -> History:
    """One history; its findings are printed with all of its moves."""
    root = Path(tempfile.mkdtemp(prefix="ac-", dir="/tmp"))
    (root / "node").mkdir()
    history = History(seed, root, about=about)
    try:
        await history.run()
    finally:
        await history.stage.clear_away(keep=True)
        story = history.story() if history.findings else ""
        if not (keep and history.findings):
            shutil.rmtree(root)
    _count(history, summary)
    for finding in history.findings:
        summary.findings.append(f"FINDING seed={seed} step={history.step}: {finding}")
    if history.findings:
        kept = [f"  kept in {root}"] if keep else []
        _print(sys.stdout, story, *summary.findings[-len(history.findings) :], *kept)
    return history


def _print(where: TextIO, *lines: str) -> None:
    print(*lines, sep="\n", file=where, flush=True)


def _count(history: History, summary: Summary) -> None:
    calls = Counter(it.method for it in history.kubelet.calls)
    summary.counts.update({"histories": 1, "moves": history.step, "starts": len(history.kubelet.starts)})
    summary.counts.update({name: calls[name] for name in ("Allocate", "PreStartContainer")})
    summary.counts["starts without PreStartContainer"] += sum(not it.prestart for it in history.kubelet.starts)
    summary.counts["kept off a GPU by the kernel"] += history.runtime.kept_off
    summary.counts["nodes with a fence"] += history.runtime.fenced
    summary.counts["uses with a fence"] += len(history.runtime.uses)
    summary.counts["hand-overs from pod to pod"] += history.runtime.handovers
    summary.counts["faults"] += history.moves.total() - history.moves["pod"]
    summary.moves.update(history.moves)
    summary.pods.update(history.pods.counters.came)
    summary.attackers.update(it.what.partition(",")[0] for it in history.runtime.attackers)
    summary.refused.update(history.pods.counters.refused)
    summary.excused.update(history.judge.excused)


def campaign(seeds: Iterable[int], summary: Summary, *, keep: bool = False, about: str = "") -> None:
    """One history for each seed."""
    with forking.forking(forking.Popen):
        for seed in seeds:
            began = time.monotonic()
            history = asyncio.run(play(seed, summary, keep=keep, about=about))
            took, allocates = time.monotonic() - began, sum(it.method == "Allocate" for it in history.kubelet.calls)
            found = f"{len(history.findings)} findings" if history.findings else "nothing found"
            words = f"seed {seed}: {history.step} moves, {allocates} Allocates, {took:.0f} s: {found}"
            _print(sys.stderr, f"{words} {dict(history.judge.excused) or ''}")


def until(ends: float, first: int) -> Iterator[int]:
    """Consecutive seeds until the time is over; one at least."""
    yield first
    yield from takewhile(lambda _: time.monotonic() < ends, count(first + 1))


def main() -> int:
    """The exit status is 1 if there was a finding."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=7200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="one history, of this seed")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a history with a finding")
    parser.add_argument("--about", choices=ABOUT, default="", help="short histories of one thing")
    asked, summary = parser.parse_args(), Summary()
    seeds = until(time.monotonic() + asked.seconds, asked.seed) if asked.only is None else (asked.only,)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        campaign(seeds, summary, keep=asked.keep, about=asked.about)
    except KeyboardInterrupt:
        _print(sys.stderr, "interrupted")
    finally:
        forking.close()
    _print(sys.stdout, summary.report())
    return 1 if summary.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
