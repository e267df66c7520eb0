"""A tenant ends, and nobody says so: how soon is its GPU proven clean, who waits for that, and what does looking cost?

Also: a container opens a clean GPU and has asked nobody. How soon is that in the ledger?

A device plugin hears nothing of a pod's end, so the service sees it by itself, and scrubs ahead of the next Allocate.
Here its tenants are real processes on simulated GPUs, under the policy that is in force when nothing else is asked for.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field

from benchmarks import hooks, processes, rig
from benchmarks.figures import Figure, quantile
from demo import groups
from demo.containers import ContainerRunner, started
from demo.installation import RESOURCE
from demo.stage import Stage
from demo.standins.journal import Call
from demo.standins.pods import Phase, Pod
from scrub_api.admin_client import AdminClient
from scrubber.ledger import database
from scrubber.ledger.ledger_rows import LedgerRow
from scrubber.node import clock

MEMORY, POLICY = "64MiB", "default"
OPEN_TO_ALL = "{fence: {mode: watch}}"  # `hold` keeps off a container that asked nobody
# What the next pod waits for, where Allocate waits and where PreStartContainer does.
WAITS = {"Allocate": OPEN_TO_ALL, "PreStartContainer": "{fence: {mode: hold}}"}
SANDBOX = 0.15  # seconds for the sandbox of a pod, between the two hooks
GPUS = 4
GAPS = (0.0, 0.005, 1.0)  # seconds
LIVES = 1.0  # seconds at most before a pod ends: at no fixed place between two looks of the service
WITHIN = 60.0  # seconds for anything to come about
ENDS, PODS = 40, 30  # how often
IDLE, SETTLES = 60.0, 5.0  # seconds; what is seen for the first time costs more
CROWD, FILES = 2000, 5
OPENS = 'exec 9<"$1" || exit; echo; read -r _'


async def measure(*, quick: bool) -> list[Figure]:
    """Pods that end while the other GPUs are free, beside other processes, on a full node; then nothing at all."""
    dice = random.Random(7)  # noqa: S311 - the same pauses each time
    figures: list[Figure] = []
    with _policy(OPEN_TO_ALL) as policy:
        async with _node(policy=policy) as stage:
            figures += _noticed([await _bypass(stage, dice) for _ in range(3 if quick else ENDS)])
    for about, (crowd, _) in hooks.CROWDS.items():
        with crowd():
            async with _node() as stage:
                ends = [await one_end(stage, dice.uniform(0, LIVES)) for _ in range(3 if quick else ENDS)]
        figures += _soon(f", {about}" if about != hooks.QUIET else "", ends)
    for gap in GAPS:
        async with _node() as stage:
            churn = await churned(stage, gap, 3 if quick else PODS, dice)
        figures += _served(gap, churn)
    seconds = 5.0 if quick else IDLE
    return figures + await _idle(8, 0, seconds) + await _idle(8 if quick else 112, 100 if quick else CROWD, seconds)


async def waits(*, quick: bool) -> list[Figure]:
    """A pod that follows at once, where Allocate waits for the scrub and where PreStartContainer does."""
    return [figure for it in WAITS.items() for figure in await _waited(*it, 3 if quick else PODS)]


# -- from the end of a tenant to CLEAN


@dataclass(frozen=True)
class End:
    """When a tenant's last process was gone, its GPU's scrub began and had passed, and CLEAN was told: uptimes."""

    gone: float
    started: float
    passed: float
    told: float

    @property
    def whole(self) -> float:
        """From the one end to the other."""
        return self.told - self.gone

    @property
    def scrub(self) -> float:
        """The job itself."""
        return self.passed - self.started

    @property
    def detection(self) -> float:
        """All the rest: seeing that the tenant has gone, and telling that its GPU is clean."""
        return self.whole - self.scrub


async def one_end(stage: Stage, lives: float) -> End:
    """One pod runs for so many seconds and is deleted."""
    pod = await _running(stage)
    uuid = _device(stage, pod)
    await asyncio.sleep(lives)
    async with stage.admin() as admin:
        before = (await admin.status([uuid])).service.ledger_rows
        pids = [*stage.containers.pids(pod, ""), *stage.containers.pids(pod, "main")]
        async with asyncio.timeout(WITHIN):
            with processes.ends(pids) as ends:
                await stage.kubelet.delete(pod)
                gone = max(await ends)
            told = await _told_clean(admin, uuid, before)
    rows = {row.kind: row.uptime for row in _rows(stage, uuid, before)}
    return End(gone, rows["scrub-started"], rows["scrub-passed"], told)


async def _told_clean(admin: AdminClient, uuid: str, seen: int) -> float:
    """When the service says it: it tells of each row of its ledger as soon as that is written."""
    while True:
        status = await admin.status([uuid], newer_than=seen, wait=WITHIN)
        if status.devices[0].state == "clean":
            return clock.now().uptime
        seen = status.service.ledger_rows


def _soon(about: str, ends: Sequence[End]) -> list[Figure]:
    name = f"a tenant's last process gone to CLEAN, {GPUS} devices of {MEMORY}{about}"
    parts = {
        "": [end.whole for end in ends],
        ", of that the scrub": [end.scrub for end in ends],
        ", of that detection": [end.detection for end in ends],
    }
    figures = []
    for part, seconds in parts.items():
        times = [each * 1000 for each in seconds]
        aim = "" if part or about else "<= 150 ms"
        figures.append(Figure(f"{name}{part}: p50", quantile(times, 0.5), "ms", len(times), aim))
        figures.append(Figure(f"{name}{part}: p99", quantile(times, 0.99), "ms", len(times)))
    return figures


# -- a container that asked nobody


async def _bypass(stage: Stage, dice: random.Random) -> float:
    """It opens a clean GPU and keeps it open. Returns the seconds until the ledger says so."""
    await rig.all_clean(stage)
    gpu = dice.randrange(stage.gpus)
    await asyncio.sleep(dice.uniform(0, LIVES))
    async with stage.admin() as admin:
        before = seen = (await admin.status()).service.ledger_rows
        script = OPENS
        if stage.groups is not None:  # as the process of a container
            script = f"echo $$ >{groups.of_process(stage.groups, secrets.token_hex(4))}/cgroup.procs || exit\n{OPENS}"
        process = await started("bypass", script, str(stage.memory_of(gpu)))
        opened = clock.now().uptime
        while not (rows := _rows(stage, stage.uuids[gpu], before)):
            seen = (await admin.status(newer_than=seen, wait=WITHIN)).service.ledger_rows
        process.kill()
        await process.wait()
    return rows[0].uptime - opened


def _noticed(seconds: Sequence[float]) -> list[Figure]:
    name = f"a container that asked nobody opens a clean device to the row of the ledger, {GPUS} devices"
    return [Figure(f"{name}: p{at}", quantile(seconds, at / 100), "s", len(seconds)) for at in (50, 99)]


# -- a full node, on which the next pod follows soon


@dataclass
class Churn:
    """How pods fared that followed others."""

    clean: list[bool] = field(default_factory=list)  # whether its Allocate found the GPU so
    refused: int = 0
    allocates: list[float] = field(default_factory=list)  # seconds, those that were refused included


async def churned(stage: Stage, gap: float, rounds: int, dice: random.Random) -> Churn:
    """All GPUs are in use; the pod that has run longest ends, and after a pause the next one gets its GPU."""
    churn = Churn()
    pods = deque([await _running(stage) for _ in stage.uuids])
    for _ in range(rounds):
        await asyncio.sleep(dice.uniform(0, LIVES))
        await stage.kubelet.delete(pods.popleft())
        await asyncio.sleep(gap)
        known = len(stage.kubelet.calls)
        pod = Pod.of("next", {RESOURCE: 1})
        await stage.kubelet.admit(pod)
        call = next((call for call in stage.kubelet.calls[known:] if call.method == "Allocate"), None)
        churn.clean.append(call is not None and _found_clean(stage, call))
        churn.allocates += [call.seconds] if call is not None else []
        if pod.phase is Phase.FAILED:
            churn.refused += 1
            await stage.kubelet.delete(pod)
            await _offered(stage)
            pod = Pod.of("again", {RESOURCE: 1})
        pods.append(await _running(stage, pod))
    return churn


def _found_clean(stage: Stage, call: Call) -> bool:
    began = call.began + clock.now().uptime - time.monotonic()
    return was_clean(_rows(stage, call.ids[0]), began)


def was_clean(rows: Sequence[LedgerRow], at: float) -> bool:
    """Whether the last that was known of a GPU at this uptime was a scrub that had passed."""
    return [row.kind for row in rows if row.uptime <= at][-1:] == ["scrub-passed"]


def _served(gap: float, churn: Churn) -> list[Figure]:
    name = f"the next pod {gap * 1000:g} ms later, {GPUS} devices of {MEMORY}, all in use"
    pods, times = len(churn.clean), [seconds * 1000 for seconds in churn.allocates]
    found = 100 * sum(churn.clean) / pods
    figures = [
        Figure(f"{name}: Allocates that found the device CLEAN already", found, "%", pods),
        Figure(f"{name}: pods refused", churn.refused, "pods", pods, "0"),
    ]
    if times:
        figures.append(Figure(f"{name}: Allocate, p50", quantile(times, 0.5), "ms", len(times)))
        figures.append(Figure(f"{name}: Allocate, p99", quantile(times, 0.99), "ms", len(times)))
    return figures


# -- a pod that waits, from its admission on


class Slow(ContainerRunner):
    """Takes as long for a sandbox as a runtime."""

    async def open_sandbox(self, pod: Pod) -> None:
        """Make it, and wait."""
        await asyncio.gather(super().open_sandbox(pod), asyncio.sleep(SANDBOX))


async def _waited(hook: str, policy: str, pods: int) -> list[Figure]:
    """A pod follows at once on a GPU that must be scrubbed."""
    hooks: list[float] = []
    whole: list[float] = []
    with _policy(policy) as path:
        async with _node(1, path, Slow) as stage:
            pod = await _running(stage)
            for _ in range(pods):
                await asyncio.sleep(LIVES)
                await stage.kubelet.delete(pod)
                known, began = len(stage.kubelet.calls), time.monotonic()
                pod = await _running(stage, Pod.of("next", {RESOURCE: 1}))
                whole.append(time.monotonic() - began)
                hooks += [call.seconds for call in stage.kubelet.calls[known:] if call.method == "Allocate"]
    name = f"the next pod at once, {hook} waits, {SANDBOX:g} s for its sandbox"
    return [
        Figure(f"{name}: Allocate, p50", quantile(hooks, 0.5) * 1000, "ms", len(hooks)),
        Figure(f"{name}: admission to running, p50", quantile(whole, 0.5) * 1000, "ms", len(whole)),
    ]


# -- nothing happens


async def _idle(gpus: int, crowd: int, seconds: float) -> list[Figure]:
    """What it costs to watch GPUs that nobody uses. Their memory is small: nobody looks into it."""
    async with rig.service(gpus, policy=POLICY) as stage:
        with processes.crowd(crowd, FILES):
            await asyncio.sleep(SETTLES)
            share = await processes.share(stage.service.pid, seconds)
            await rig.all_clean(stage, within=1.0)
    about = f"{crowd} more processes" if crowd else "no more processes"
    aim = "<= 0.2 %" if crowd else ""
    return [Figure(f"all CLEAN, {gpus} devices, {about}: processor", share * 100, "% of a core", 1, aim)]


# -- the same few moves


@contextmanager
def _policy(defaults: str) -> Iterator[str]:
    """The path of a policy file with these defaults."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as written:
        written.write(f"name: measured\ndefaults: {defaults}\n")
        written.flush()
        yield written.name


@asynccontextmanager
async def _node(
    gpus: int = GPUS, policy: str = POLICY, runs: type[ContainerRunner] = ContainerRunner
) -> AsyncIterator[Stage]:
    """A whole node; every GPU is clean and offered."""
    async with rig.service(gpus, MEMORY, policy, runs) as stage:
        await stage.start_node()
        await _offered(stage)
        yield stage


async def _offered(stage: Stage) -> None:
    await stage.kubelet.until(lambda: stage.kubelet.allocatable.get(RESOURCE) == stage.gpus, WITHIN)


async def _running(stage: Stage, pod: Pod | None = None) -> Pod:
    """The pod, or another one, on one GPU; its process has the memory open and has written into it."""
    pod = pod or Pod.of("tenant", {RESOURCE: 1})
    if pod.uid not in stage.kubelet.pods:
        await stage.kubelet.admit(pod)
    if pod.phase is Phase.FAILED or not await stage.kubelet.sync(pod):
        raise RuntimeError(f"a pod does not run: {pod.message or pod.statuses}")
    return pod


def _device(stage: Stage, pod: Pod) -> str:
    return stage.kubelet.held(pod)["main"][RESOURCE][0]


def _rows(stage: Stage, uuid: str, after: int = 0) -> list[LedgerRow]:
    """What the ledger holds of a GPU beyond this row, oldest first."""
    with closing(database.connect(stage.ledger, "mode=ro")) as connection:
        return [row for row in database.rows(connection, after + 1) if row.device == uuid]
