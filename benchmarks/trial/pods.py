"""Pods on the GPU, one after the other: the service and the plugin as they are, the kubelet of the demo."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from benchmarks.trial import groups, service
from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured, NotDone, Question, Unproven, rounds
from benchmarks.trial.groups import Groups
from benchmarks.trial.imports import pidfd_refused
from demo.installation import RESOURCE
from demo.programs import ServiceProgram
from demo.stage import Stage
from demo.standins.pods import Container, Phase, Pod
from demo.standins.runtime import CannotCreate, Devices, Runtime
from plugin.devices import HEALTHY
from plugin.kubelet_api import deviceplugin_pb2
from tests.pod_groups import roots

MOST = 10  # pods of each kind
SANDBOX, CONTAINER = "5a" * 32, "c0" * 32  # ids of containers, as their groups are named
CLEAN_WITHIN = 60.0  # seconds
WAITED, AT_ONCE = "a pod that gets a clean GPU", "a pod right after a pod that filled the memory"
_CLEAN = "no passes: the driver's lists, a search of /proc, one row of the ledger"
_SCRUB = "a scrub: context 0.1 s, four passes 0.11 s, the worker's end 0.15 s"
QUESTIONS = {
    WAITED: {
        "Allocate": Question("Allocate", 3, 150, "ms", _CLEAN),
        "PreStartContainer": Question("PreStartContainer", 3, 150, "ms", _CLEAN),
        "gap": Question("from the end of the last container to the start of this one", 300, 4000, "ms", _SCRUB),
    },
    AT_ONCE: {
        "Allocate": Question("Allocate", 300, 1500, "ms", _SCRUB),
        "PreStartContainer": Question("PreStartContainer", 3, 150, "ms", _CLEAN),
        "gap": Question("from the end of the last container to the start of this one", 350, 1700, "ms", _SCRUB),
    },
}
# Takes all memory of the GPU, counts the bytes that are not zero, fills it, and keeps it until its input ends.
HOLD = """
import json, sys
from benchmarks.trial.card import Where, fresh, opened, unheard
from scrubber.cuda import memory
from scrubber.cuda.patterns import ZERO
whole = memory.take(opened(Where(**json.loads(sys.stdin.readline()))))
dirty = sum(found.count for found in whole.compare(ZERO, unheard))
whole.write(fresh("a pod"), unheard)
print(dirty, flush=True)
sys.stdin.read()
"""
FOUND = Question("bytes that are not zero in the memory that a pod finds", 0, 0, "bytes", "the scrub has left zeros")

Times = dict[str, float]


class Tenants(Runtime):
    """Runs each container as a process that fills the memory of the GPU."""

    cdi: Path | None = None

    def __init__(self, where: Where, groups: Sequence[Path]) -> None:
        """``groups``: hierarchies of control groups, in which each pod gets a group as a kubelet makes it."""
        self._where, self._groups = where, groups
        self._running: dict[tuple[str, str], asyncio.subprocess.Process] = {}
        self.ended = self.started = 0.0  # the last end of a container, and the last start
        self.dirty: list[int] = []  # what each container has found

    async def open_sandbox(self, pod: Pod) -> None:
        """Make the group of the pod, with a process that lives as long as the pod."""
        if (pod.uid, "") not in self._running:
            for group in self._of(pod, SANDBOX):
                group.mkdir(parents=True)
            await self._run(pod, "", SANDBOX, "cat")

    async def close_sandbox(self, pod: Pod) -> None:
        """End that process, and remove the group."""
        await self._end(pod, "")
        for group in (*self._of(pod, CONTAINER), *self._of(pod, SANDBOX)):
            with suppress(FileNotFoundError):
                group.rmdir()
        for group in self._of(pod, ""):
            with suppress(FileNotFoundError):
                group.rmdir()

    async def start(
        self, pod: Pod, _container: Container, _devices: Devices, _response: deviceplugin_pb2.ContainerAllocateResponse
    ) -> None:
        """Return when the memory is full."""
        self.started = time.perf_counter()
        for group in self._of(pod, CONTAINER):
            group.mkdir()
        process = await self._run(pod, "main", CONTAINER, sys.executable, "-c", HOLD)
        if process.stdin is None or process.stdout is None:
            raise CannotCreate("the process has no pipes")
        process.stdin.write(json.dumps(asdict(self._where)).encode() + b"\n")
        if not (dirty := await process.stdout.readline()):
            raise CannotCreate(f"the process of {pod.name} ended with status {await process.wait()}")
        self.dirty.append(int(dirty))

    async def stop(self, pod: Pod, _container: Container) -> None:
        """Kill it, as a runtime does."""
        if await self._end(pod, "main"):
            self.ended = time.perf_counter()

    async def clear_away(self) -> None:
        """Leave no process behind."""
        for process in self._running.values():
            process.kill()
            await process.wait()

    def _of(self, pod: Pod, name: str) -> list[Path]:
        return [root / f"kubepods/pod{pod.uid}" / name for root in self._groups]

    async def _run(self, pod: Pod, name: str, group: str, *command: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        self._running[pod.uid, name] = process
        for directory in self._of(pod, group):
            (directory / "cgroup.procs").write_text(str(process.pid))
        return process

    async def _end(self, pod: Pod, name: str) -> bool:
        if (process := self._running.pop((pod.uid, name), None)) is None:
            return False
        process.kill()
        await process.wait()
        return True


def measure(where: Where) -> Iterator[Measured]:
    """Each second pod is there before the GPU is clean."""
    if where.limit is not None:
        raise NotDone("the service takes all memory, which --limit forbids")
    if (refused := pidfd_refused()) is not None:
        raise NotDone(f"{refused}, so the service can hold no worker: no scrub by the service is proved here")
    if os.geteuid() != 0:
        raise NotDone("it takes root, to make the control groups of pods")
    with service.others_held(where), groups.made_if_possible() as made:
        found, dirty, steps = asyncio.run(_pods(where, made))
    for kind, questions in QUESTIONS.items():
        for name, question in questions.items():
            yield question.about(kind).answered(*(1000 * times[name] for times in found[kind]))
    yield from steps
    yield FOUND.answered(*dirty)
    if any(dirty):
        raise Unproven(f"{sum(map(bool, dirty))} of {len(dirty)} pods found bytes that were not zero")


async def _pods(where: Where, made: Groups | None) -> tuple[dict[str, list[Times]], list[int], list[Measured]]:
    hierarchies = roots() | ({"second": made.below} if made is not None else {})
    tenants = Tenants(where, tuple(hierarchies.values()))
    stage = _stage(where, tenants, made)
    found: dict[str, list[Times]] = {WAITED: [], AT_ONCE: []}
    try:
        await stage.start()
        await _clean(stage, where)
        await stage.start_node()
        await _pod(stage, tenants, "first")  # connects
        for number in rounds(MOST, where.ends):
            found[AT_ONCE].append(await _pod(stage, tenants, f"at-once-{number}"))
            await _clean(stage, where)
            # On a busy machine the kubelet learns it later.
            await stage.kubelet.until(lambda: HEALTHY in stage.kubelet.devices(RESOURCE).values(), CLEAN_WITHIN)
            found[WAITED].append(await _pod(stage, tenants, f"waited-{number}"))
        steps = await asyncio.to_thread(service.steps_of_all, stage.root, stage.service.log, where)
    finally:
        with (Path(where.evidence) / "pods.log").open("wb") as log:
            log.writelines(
                program.log.read_bytes() for program in (stage.service, stage.plugin) if program.log.exists()
            )
            log.write(service.ledger_of(stage.root))
        await stage.clear_away(keep=False)
    return found, tenants.dirty, steps


async def _clean(stage: Stage, where: Where) -> None:
    """Wait until the GPU is clean."""
    seen = 0
    async with stage.admin() as admin, asyncio.timeout(CLEAN_WITHIN):
        while (status := await admin.status([where.uuid], newer_than=seen, wait=0.5)).devices[0].state != "clean":
            seen = status.service.ledger_rows


async def _pod(stage: Stage, tenants: Tenants, name: str) -> Times:
    """A pod from its admission to its deletion; what it waited for."""
    pod, calls, ended = Pod.of(name, {RESOURCE: 1}), len(stage.kubelet.calls), tenants.ended
    if (await stage.kubelet.run(pod)).phase is not Phase.RUNNING:
        raise RuntimeError(f"{name} does not run: {pod.message or pod.statuses}")
    gap = tenants.started - ended
    await stage.kubelet.delete(pod)
    took = {call.method: call.seconds for call in stage.kubelet.calls[calls:]}
    return {"gap": gap, **{method: took[method] for method in ("Allocate", "PreStartContainer")}}


def _stage(where: Where, tenants: Tenants, made: Groups | None) -> Stage:
    stage = Stage(
        1,
        root=Path(tempfile.mkdtemp(prefix="ac-", dir="/tmp")),
        runs=lambda _directory: tenants,  # type: ignore[arg-type] # instead of simulated containers
        fenced=False,  # the tenants make control groups of their own
    )
    policy = stage.root / "policy.yaml"
    policy.write_text(service.policy(where))
    flags = service.flags(where, stage.root, stage.root / "run", policy, made)
    flags |= {"--kubelet-dir": stage.kubelet_dir, "--pod-logs-dir": stage.pod_logs}
    words = [str(word) for flag in flags.items() for word in flag]
    stage.service = ServiceProgram(("scrubber", *words), stage.service.log, {**os.environ})
    return stage
